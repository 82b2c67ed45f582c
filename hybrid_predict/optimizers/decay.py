"""What an optimizer does to weights besides following its gradient, as by weight decay."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.errors import failures_suppressed, raise_interrupt
from hybrid_predict.optimizers.refusals import refusal
from hybrid_predict.ranks import processes
from hybrid_predict.tensors.random_states import random_states, set_random_states

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
        unknown: What could not be determined about the optimizer, "" if nothing.
        weight_decay: The option of this name with which the rule was found; 0 without one.
    """

    decay: float = 0.0
    by_rate: bool = True
    coupled: float = 0.0
    relative: bool = False
    unknown: str = ""
    weight_decay: float = 0.0

    def at(self, group: Mapping[str, Any]) -> UpdateRule:
        """Return the rule for the group's ``weight_decay``, to which decay is proportional."""
        now = number(group, "weight_decay")
        if not self.weight_decay or now == self.weight_decay:
            return self
        share = now / self.weight_decay
        return replace(self, decay=share * self.decay, coupled=share * self.coupled)


def number(group: Mapping[str, Any], name: str) -> float:
    """Return the value of a group's option, or 0 if it is no number."""
    value = group.get(name)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 0.0  # one on a device is not read, since that waits


def stated_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule | None:
    """Return the rule that the options of torch's own classes state; None for other classes."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None
    name = type(optimizer).__name__
    decay, more = number(group, "weight_decay"), number(group, "lambd")  # of ASGD
    # Without momentum, what is added to the gradient is subtracted from the weights.
    plain = name == "SGD" and not number(group, "momentum")
    decoupled = group.get("decoupled_weight_decay", plain or name in _DECOUPLED)
    return UpdateRule(
        decay=decay + more if decoupled else more,
        coupled=0.0 if decoupled else decay,
        relative=name == "Adafactor",
    )


def found_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """Find the rule of a parameter group by trials; nothing of the optimizer changes.

    With a zero gradient, decoupled decay removes the same fraction of every weight in each update,
    wherever the weights are. Coupled decay of c has the same effect as a gradient of c times the
    weights, so a gradient of -c times the weights stops the updates. Updates are relative if they
    grow with the weights although the gradient stays the same. Weights that are moved between two
    updates stay moved, unless the optimizer keeps a second copy of them.

    Raises:
        UnsupportedSetupError: If the optimizer keeps a second copy of the weights.
    """
    try:
        with _without_trace():
            trials = _Trials(optimizer, group)
            rule = replace(trials.decay(), relative=trials.is_relative())
            returns = trials.returns()
    except Exception as error:  # the optimizer may require other parameters than the trial's
        raise_interrupt(error)
        return UpdateRule(unknown=f"{DECAY} with a copy of it ({processes.summary(error)})")
    if returns:
        reason = "it moves weights back, as with a second copy of the weights"
        raise refusal(optimizer, reason)
    return rule


@final
class _Trials:
    """Updates of copies of an optimizer, in 64 bits because rounding can look like decay.

    A copy has the options of the group, and what the optimizer holds except its state. Four weights
    replace the first parameter of the group, and keep the flags in its state, which may tell how it
    is treated; other parameters have only a shape.
    """

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._group = group
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        left_out = ("param_groups", "state", "step")  # a scheduler replaces ``step``
        self._held = {k: v for k, v in vars(optimizer).items() if k not in left_out}
        for value in (*self._held.values(), *group.values()):
            if getattr(value, "__closure__", None):
                raise TypeError("it holds a function with variables of its own")
        self._shapes = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
            for each in optimizer.param_groups
            for p in each["params"]
        }
        places = [torch.tensor(place, dtype=torch.float64) for place in _PLACES]
        self._path = list(islice(cycle(places), _UPDATES))
        self._gradient = torch.tensor(_GRADIENT, dtype=torch.float64)

    def decay(self) -> UpdateRule:
        """Return the part of the rule that concerns weight decay."""
        still = self._moves(self._path, torch.zeros_like)
        if not any(bool(move.any()) for move in still):
            return UpdateRule()
        weight_decay = number(self._group, "weight_decay")
        shares = [-move / place for move, place in zip(still, self._path[1:], strict=True)]
        if all(_is_close(f, f.mean()) for f in shares) and _is_close(*shares[-2:]):
            full = float(shares[-1].mean())
            halved = self._moves(self._path, torch.zeros_like, lr=_RATE / 2)[-1]
            left = float((-halved / self._path[-1]).mean()) / full
            by_rate = abs(left - 0.5) < 0.1
            if (by_rate or abs(left - 1.0) < 0.1) and 0.0 < full < 0.5:
                decay = full / _RATE if by_rate else full
                return UpdateRule(decay, by_rate, weight_decay=weight_decay)
            return UpdateRule(unknown=DECAY)
        most = _CLOSE * max(float(move.abs().max()) for move in still)
        for value in {number(self._group, name) for name in self._group if name != "lr"}:
            stopped = self._moves(self._path, partial(torch.mul, -value))
            if all(bool(move.abs().max() <= most) for move in stopped):
                return UpdateRule(coupled=value, weight_decay=weight_decay)
        return UpdateRule(unknown=DECAY)

    def is_relative(self) -> bool:
        """Return whether updates grow with the weights."""
        faint = {"weight_decay": _FAINT} if self._group.get("weight_decay") else {}
        short, long = (
            self._moves([scale * self._path[0]] * 2, self._constant, **faint)[0].norm()
            for scale in (0.25, 2.0)
        )
        return bool(long > 3.0 * short > 0)

    def _constant(self, _: Tensor) -> Tensor:
        return self._gradient

    def returns(self) -> bool:
        """Return whether most of a manual movement after the first update is gone later.

        Some optimizers keep a second copy only of weights in 16 bits.
        """
        own = self._group["params"][0].dtype
        for dtype in (torch.float64, own) if own.itemsize == 2 else (torch.float64,):
            with failures_suppressed():  # not all operations know 16 bits
                still, moved = (self._end(nudge, dtype) for nudge in (0.0, 0.1))
                if not (moved - still).mean() > 0.07:
                    return True
        return False

    def _end(self, nudge: float, dtype: torch.dtype) -> Tensor:
        """Return where weights are after many updates, moved by ``nudge`` after the first one."""
        without = {"weight_decay": 0.0} if self._group.get("weight_decay") else {}
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
        optimizer = self._optimizer
        twin = object.__new__(type(self._optimizer))
        p = nn.Parameter(weights.clone())
        first = self._group["params"][0]
        known = optimizer.state.get(first, {}).items()
        flags = {name: value for name, value in known if isinstance(value, (bool, str))}
        state = defaultdict(dict, {p: flags} if flags else {})
        group: dict[str, Any] = {"params": [p]}
        memo: dict[int, Any] = {**self._shapes, id(first): p, id(optimizer): twin}
        memo |= {id(optimizer.state): state, id(optimizer.param_groups): [group]}
        memo |= {id(each): group for each in optimizer.param_groups}
        for name, value in self._held.items():
            own_state = isinstance(value, dict) and any(id(key) in self._shapes for key in value)
            if own_state or isinstance(value, defaultdict) or "hooks" in name:
                memo[id(value)] = copy.copy(value)
                memo[id(value)].clear()
        chosen = {name: value for name, value in self._group.items() if name != "params"}
        # The plain implementation gives the same updates, and works on every tensor.
        changed = {"fused", "capturable", "foreach", "maximize"} & chosen.keys()
        plain = dict.fromkeys(changed, False)
        given = {"lr": _RATE, **options}
        if isinstance(chosen["lr"], Tensor):
            given["lr"] = torch.tensor(given["lr"])
        held, own = copy.deepcopy((self._held, chosen), memo)
        group.update(own | plain | given)
        vars(twin).update(held, param_groups=[group], state=state)
        return twin, p


@contextmanager
def _without_trace() -> Iterator[None]:
    """Hide warnings and random numbers from the user's run."""
    states = random_states()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_random_states(states)


def _is_close(left: Tensor, right: Tensor) -> bool:
    return bool((left - right).abs().max() <= _CLOSE * right.mean().abs())
