"""What an optimizer does to weights besides following its gradient, as by weight decay."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode

from hybrid_predict.errors import failures_suppressed, raise_interrupt
from hybrid_predict.ranks import processes
from hybrid_predict.tensors.random_states import random_states, set_random_states

LARGEST = 1 << 14
"""Most entries of a tensor that is copied; a larger one is replaced by its shape."""

_DECOUPLED = ("AdamW", "Adafactor", "ASGD", "Muon")
"""Classes of torch whose weight decay is decoupled without an option that says so."""

_PLACES = ((1.0, -2.0), (3.0, 0.5)), ((-0.5, 1.5), (1.0, 2.5))
_GRADIENT = ((0.3, 0.2), (-0.1, 0.4))

_RATE = 0.01
"""Learning rate of trials; with the user's own, rounding might hide the decay."""

_UPDATES, _LONG = 12, 64
"""Updates of a trial, and of one in which a second copy of the weights may come back."""

_FAINT = 1e-6
"""Weight decay that moves nothing; some optimizers follow the weights' size only with any."""

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal."""

DECAY = "whose weight decay could not be found out"
DIRECTION = "that was not seen to go along or against the gradient"
DEVICE_RATE = "whose negative learning rate is a tensor on a device"
"""What about an optimizer could not be found out."""


@final
@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer updates a parameter, besides following its gradient.

    Args:
        decay: Fraction of the weights that decoupled weight decay removes in one update.
        by_rate: Whether ``decay`` is per unit of learning rate.
        coupled: Multiple of the weights that coupled weight decay adds to the gradient.
        relative: Whether the length of an update is proportional to that of the weights.
        returns: Whether a second copy of the weights undoes what other code has moved.
        sign: -1 if the optimizer goes along the gradient at a positive learning rate, else 1.
        unknown: What could not be determined about the optimizer, "" if nothing.
        basis: Name and value of each option that ``decay`` and ``coupled`` depend on, and whether
            they are proportional to it.
    """

    decay: float = 0.0
    by_rate: bool = True
    coupled: float = 0.0
    relative: bool = False
    returns: bool = False
    sign: float = 1.0
    unknown: str = ""
    basis: tuple[tuple[str, float, bool], ...] = ()

    @property
    def known(self) -> bool:
        """Whether gradient and weight decay explain the optimizer's updates."""
        return not self.unknown

    def at(self, group: Mapping[str, Any]) -> UpdateRule | None:
        """Return the rule for other values of the options; None if they need another trial."""
        decay, coupled = self.decay, self.coupled
        for name, value, proportional in self.basis:
            if (now := number(group, name)) != value:
                if not proportional:
                    return None
                decay, coupled = now / value * decay, now / value * coupled
        return replace(self, decay=decay, coupled=coupled)


def number(group: Mapping[str, Any], name: str) -> float:
    """Return the value of a group's option, or 0 if it is no number."""
    value = group.get(name)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 0.0  # one on a device is not read, since that waits


def find_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """Find the rule of a parameter group; nothing of the optimizer changes.

    The options of torch's own classes state it. Copies of others are tried. With a zero gradient,
    decoupled decay removes the same fraction of every weight in each update, wherever the weights
    are. Coupled decay of c has the same effect as a gradient of c times the weights, so a gradient
    of -c times the weights stops the updates. Updates are relative if they grow with the weights
    although the gradient stays the same. Weights that are moved between two updates stay moved,
    unless the optimizer keeps a second copy of them.
    """
    rate = group["lr"]
    if isinstance(rate, Tensor) and rate.device.type != "cpu" and bool(rate < 0):
        return UpdateRule(unknown=DEVICE_RATE)
    if type(optimizer).__module__.startswith("torch.optim"):
        return _stated(type(optimizer).__name__, group)
    try:
        with _without_trace():
            return _Trials(optimizer, group).rule()
    except Exception as error:  # the optimizer may require other parameters than the trial's
        raise_interrupt(error)
        unknown = f"{DECAY} with a copy of it ({processes.summary(error)})"
        return UpdateRule(sign=-1.0 if group.get("maximize") else 1.0, unknown=unknown)


def _stated(name: str, group: Mapping[str, Any]) -> UpdateRule:
    """Return the rule of an optimizer of torch with this name."""
    decay, more = number(group, "weight_decay"), number(group, "lambd")  # of ASGD
    # Without momentum, what is added to the gradient is subtracted from the weights.
    plain = name == "SGD" and not number(group, "momentum")
    decoupled = group.get("decoupled_weight_decay", plain or name in _DECOUPLED)
    return UpdateRule(
        decay=decay + more if decoupled else more,
        coupled=0.0 if decoupled else decay,
        relative=name == "Adafactor",
        sign=-1.0 if group.get("maximize") else 1.0,
        basis=(("weight_decay", decay, False), ("lambd", more, False)),
    )


@final
class _Trials:
    """Updates of copies of an optimizer, in 64 bits because rounding can look like decay.

    A copy has the options of the group, and what the optimizer holds except its state. Four weights
    replace the first parameter of the group, and keep the flags in its state, which may tell how it
    is treated; other parameters have only a shape.
    """

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        self._optimizer, self._group = optimizer, group
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        left_out = ("param_groups", "state", "step")  # a scheduler replaces ``step``
        self._held = {k: v for k, v in vars(optimizer).items() if k not in left_out}
        for value in (*self._held.values(), *group.values()):
            if getattr(value, "__closure__", None):
                raise TypeError("it holds a function with variables of its own")
        self._shapes = {
            id(p): nn.Parameter(_shape(p), p.requires_grad)
            for each in optimizer.param_groups
            for p in each["params"]
        }
        places = [torch.tensor(place, dtype=torch.float64) for place in _PLACES]
        self._path = list(islice(cycle(places), _UPDATES))
        self._gradient = torch.tensor(_GRADIENT, dtype=torch.float64)

    def rule(self) -> UpdateRule:
        """Return the rule of the group."""
        place, *_ = self._path
        # So near to zero, no decay counts.
        near = self._moves([1e-3 * place] * _UPDATES, lambda _: self._gradient)
        moved = torch.stack(near).sum(0)
        cosine = nn.functional.cosine_similarity(moved.flatten(), self._gradient.flatten(), dim=0)
        seen = bool(moved.norm() > 1e-12 and cosine.abs() > 0.05)
        sign = 1.0 if cosine < 0 or not seen else -1.0
        rule = self._decay(sign) if seen else UpdateRule(unknown=DIRECTION)
        decays = {name for name, _, proportional in rule.basis if proportional}
        decays |= {name for name in self._group if "weight_decay" in name}
        faint = {name: _FAINT if self._group[name] else 0.0 for name in decays}
        short, long = (
            self._moves([scale * place] * 2, lambda _: self._gradient, **faint)[0].norm()
            for scale in (0.25, 2.0)
        )
        relative = bool(long > 3.0 * short > 0)
        returns = self._returns(dict.fromkeys(decays, 0.0))
        return replace(rule, relative=relative, returns=returns, sign=sign)

    def _decay(self, sign: float) -> UpdateRule:
        """Return the part of the rule that concerns weight decay."""
        still = self._moves(self._path, torch.zeros_like)
        if not any(bool(move.any()) for move in still):
            return UpdateRule()
        shares = [-move / place for move, place in zip(still, self._path[1:], strict=True)]
        numbers = {n: v for n in self._group if n != "lr" and (v := number(self._group, n))}
        if all(_is_close(f, f.mean()) for f in shares) and _is_close(*shares[-2:]):
            return self._decoupled(float(shares[-1].mean()), numbers)
        for name in sorted(numbers, key=lambda name: name != "weight_decay"):
            value = numbers[name]
            if self._stops(sign * value) and self._stops(sign * value, lr=_RATE / 2):
                return UpdateRule(coupled=value, basis=((name, value, True),))
        return UpdateRule(unknown=DECAY)

    def _decoupled(self, full: float, numbers: Mapping[str, float]) -> UpdateRule:
        """Return the rule for a fraction of the weights that is removed in each update."""

        def left(**options: Any) -> float:
            """Return the share of the fraction that other options leave."""
            last = self._moves(self._path, torch.zeros_like, **options)[-1]
            return float((-last / self._path[-1]).mean()) / full

        slower = left(lr=_RATE / 2)
        by_rate = abs(slower - 0.5) < 0.1
        if not (by_rate or abs(slower - 1.0) < 0.1) or not 0.0 < full < 0.5:
            return UpdateRule(unknown=DECAY)
        basis = []
        for name, value in numbers.items():
            with failures_suppressed():  # half a number may not be a value of the option
                halved = left(**{name: value / 2})
                if abs(halved - 1.0) > _CLOSE:
                    basis.append((name, value, abs(halved - 0.5) <= _CLOSE))
        return UpdateRule(full / _RATE if by_rate else full, by_rate, basis=tuple(basis))

    def _stops(self, coupled: float, **options: Any) -> bool:
        """Return whether a gradient of minus this multiple of the weights stops the updates."""

        def pull(multiple: float) -> float:
            """Return how far the weights move away from zero."""
            moves = self._moves(self._path, lambda place: -multiple * place, **options)
            pairs = zip(moves, self._path[1:], strict=True)
            return sum(float((move * place).sum()) for move, place in pairs)

        return pull((1.0 - _CLOSE) * coupled) < 0.0 < pull((1.0 + _CLOSE) * coupled)

    def _returns(self, without: Mapping[str, Any]) -> bool:
        """Return whether most of a manual movement after the first update is gone later.

        Some optimizers keep a second copy only of weights in 16 bits.
        """
        own = self._group["params"][0].dtype
        for dtype in (torch.float64, own) if own.itemsize == 2 else (torch.float64,):
            with failures_suppressed():  # not all operations know 16 bits
                still, moved = (self._end(nudge, dtype, without) for nudge in (0.0, 0.1))
                if not (moved - still).mean() > 0.07:
                    return True
        return False

    def _end(self, nudge: float, dtype: torch.dtype, without: Mapping[str, Any]) -> Tensor:
        """Return where weights are after many updates, moved by ``nudge`` after the first one."""
        twin, p = self._copy(self._path[0].to(dtype), {**without, "lr": 1e-6})
        for k in range(_LONG):
            self._update(twin, p, self._gradient * (-1.0) ** k)
            if k == 0:
                p.detach().add_(nudge)
        return p.detach().to(torch.float64)

    def _moves(
        self, places: Sequence[Tensor], gradient: Callable[[Tensor], Tensor], **options: Any
    ) -> list[Tensor]:
        """Return the updates from places to which the weights are moved before, but the first one.

        In the first update of all, some optimizers only initialise their state. The gradient is a
        function of the place.
        """
        twin, p = self._copy(places[0], options)
        moves = []
        for place in places:
            p.detach().copy_(place)
            self._update(twin, p, gradient(place))
            moves.append(p.detach() - place)
        return moves[1:]

    def _update(self, twin: Any, p: nn.Parameter, gradient: Tensor) -> None:
        p.grad = gradient.to(p.dtype, copy=True)
        with torch.enable_grad():
            self._step(twin)

    def _copy(self, weights: Tensor, options: Mapping[str, Any]) -> tuple[Any, nn.Parameter]:
        """Return a copy of the optimizer, and the parameter that it updates."""
        optimizer, twin = self._optimizer, object.__new__(type(self._optimizer))
        p, first = nn.Parameter(weights.clone()), self._group["params"][0]
        known = optimizer.state.get(first, {}).items()
        flags = {name: value for name, value in known if isinstance(value, (bool, str))}
        state = defaultdict(dict, {p: flags} if flags else {})
        group: dict[str, Any] = {"params": [p]}
        memo: dict[int, Any] = {**self._shapes, id(first): p, id(optimizer): twin}
        memo |= {id(optimizer.state): state, id(optimizer.param_groups): [group]}
        memo |= {id(each): group for each in optimizer.param_groups}
        for name, value in self._held.items():
            if isinstance(value, dict) and ("hooks" in name or self._is_state(value)):
                memo[id(value)] = copy.copy(value)
                memo[id(value)].clear()
        chosen = {name: value for name, value in self._group.items() if name != "params"}
        # The plain implementation gives the same updates, and works on every tensor.
        plain = dict.fromkeys({"fused", "capturable", "foreach"} & chosen.keys(), False)
        given = {"lr": _RATE, **options}
        if isinstance(chosen["lr"], Tensor):
            given["lr"] = torch.tensor(given["lr"])
        with _Light():
            held, own = copy.deepcopy((self._held, chosen), memo)
        group.update(own | plain | given)
        vars(twin).update(held, param_groups=[group], state=state)
        return twin, p

    def _is_state(self, value: Mapping[Any, Any]) -> bool:
        return isinstance(value, defaultdict) or any(id(key) in self._shapes for key in value)


@final
class _Light(TorchFunctionMode):
    """Copies of a large tensor only its shape, so that nothing of the model's size is copied."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.__deepcopy__, Tensor.clone) and args[0].numel() > LARGEST:
            return _shape(args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_trace() -> Iterator[None]:
    """Hide warnings, random numbers and calls of global hooks from the user's run."""
    states = random_states()
    hooks = [
        getattr(torch_optimizer, f"_global_optimizer_{when}_hooks", {}) for when in ("pre", "post")
    ]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)
        set_random_states(states)


def _shape(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


def _is_close(left: Tensor, right: Tensor) -> bool:
    return bool((left - right).abs().max() <= _CLOSE * right.mean().abs())
