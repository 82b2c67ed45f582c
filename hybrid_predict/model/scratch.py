"""Finds out how an optimizer updates, by letting a copy of it update a scratch parameter."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_WEIGHTS = ((1.0, -2.0), (3.0, 0.5))
_GRADIENT = ((0.3, 0.2), (-0.1, 0.4))
_RATE = 0.01
"""Learning rate of scratch updates; with the user's own, rounding might hide the decay."""

_FAINT = 1e-6
"""Weight decay that moves nothing; some optimizers follow the weights' size only with any."""

_PATIENCE = 16
"""Number of updates in which an optimizer with a second copy of the weights returns to it."""

_LONG_PATIENCE = 128
"""The same, where a state looks like a second copy."""

_SECOND_COPIES = ("slow", "lookahead", "master", "shadow")
"""Words in the names of states that may hold a second copy of the weights."""


@final
@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer updates a parameter, besides following its gradient.

    Args:
        decay: Fraction of the weights that decoupled weight decay removes in one update, per unit
            of learning rate if ``by_rate``.
        by_rate: Whether ``decay`` is proportional to the learning rate.
        coupled: Multiple of the weights that coupled weight decay adds to the gradient.
        relative: Whether the length of an update is proportional to that of the weights.
        returns: Whether the optimizer moves weights back that other code has moved, because it
            keeps a second copy of them.
        known: Whether decay and coupled decay could be found.
        basis: Weight decay to which ``decay`` and ``coupled`` are proportional, or 0.
    """

    decay: float = 0.0
    by_rate: bool = True
    coupled: float = 0.0
    relative: bool = False
    returns: bool = False
    known: bool = True
    basis: float = 0.0

    def at(self, decay: float) -> UpdateRule:
        """Return the rule for another weight decay."""
        if not self.basis or decay == self.basis:
            return self
        ratio = decay / self.basis
        return replace(self, decay=ratio * self.decay, coupled=ratio * self.coupled, basis=decay)

    def fraction(self, rate: float | Tensor) -> float | Tensor:
        """Return the fraction of the weights that decoupled decay removes at a learning rate."""
        return self.decay * rate if self.by_rate and self.decay else self.decay


def weight_decay(group: Mapping[str, Any]) -> float:
    """Return a group's weight decay, or 0 if it has none."""
    value = group.get("weight_decay")
    return float(value) if isinstance(value, (int, float)) else 0.0


def settings(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the options of a group that determine its rule.

    These are flags, strings, and numbers about decay. Of the weight decay, only whether it is zero
    counts.
    """
    found: list[tuple[str, Any]] = [("weight_decay", weight_decay(group) != 0.0)]
    for name in sorted(group):
        value, about = group[name], "decay" in name or "decouple" in name
        number = about and name != "weight_decay" and isinstance(value, (int, float))
        if number or value is None or isinstance(value, (bool, str)):
            found.append((name, value))
    return tuple(found)


def wraps_another(optimizer: Optimizer) -> bool:
    """Whether an optimizer holds another optimizer, which copies of it would share and update."""
    held = list(vars(optimizer).values())
    held += [v for x in held if isinstance(x, (list, tuple)) for v in x]
    held += [v for x in held if isinstance(x, dict) for v in x.values()]
    if any(isinstance(x, Optimizer) and x is not optimizer for x in held):
        return True
    own = [inspect.getattr_static(type(optimizer), n, None) for n in ("param_groups", "state")]
    return any(isinstance(x, property) for x in own)


def inner_optimizer(given: Sequence[Any]) -> str:
    """Tell where the torch optimizer is that objects of another class stand for, or ""."""
    for other in given:
        held = getattr(other, "__dict__", {})
        inner = [name for name, value in held.items() if isinstance(value, Optimizer)]
        if inner and not isinstance(other, Optimizer):
            return f"Pass the optimizer that it wraps, its attribute {inner[0]!r}."
        if type(other).__module__.startswith("fastai."):
            return (
                "fastai's own optimizers are not torch optimizers: set Learner(opt_func=partial("
                "OptimWrapper, opt=torch.optim.AdamW)), and pass learn.opt.opt."
            )
    return ""


def find_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """Find the rule of a parameter group by updating a scratch parameter of four entries.

    With a zero gradient, decoupled decay removes the same fraction of every weight in each update.
    Coupled decay has the same effect as a gradient of ``weight_decay`` times the weights. Updates
    are relative if they grow with the weights although the gradient stays the same. Weights that
    are moved between two updates stay moved, unless the optimizer keeps a second copy of them.

    Args:
        optimizer: Any torch optimizer; it and its state are not changed.
        group: One of its parameter groups.
    """
    try:
        with _quiet():
            return _probe(_Scratch(optimizer, group))
    except Exception:  # the optimizer may require other parameters than a scratch one
        return UpdateRule(known=False)


def _probe(scratch: _Scratch) -> UpdateRule:
    # 64 bits, because rounding in 32 bits can look like decay.
    weights = torch.tensor(_WEIGHTS, dtype=torch.float64)
    without = {name: 0.0 for name in scratch.options if "weight_decay" in name}
    gradient = torch.tensor(_GRADIENT, dtype=torch.float64)
    faint = {name: _FAINT if scratch.options[name] else 0.0 for name in without}
    short, long = (scratch.moves(s * weights, gradient, **faint)[0].norm() for s in (0.25, 2.0))
    relative = bool(long > 3.0 * short > 0)
    returns = _returns(scratch, weights, gradient, without)
    still = scratch.moves(weights, 0.0 * gradient)
    decay = weight_decay(scratch.options)
    lesser = {"weight_decay": decay / 2} if decay else {}
    if not any(bool(move.any()) for move in still):
        return UpdateRule(relative=relative, returns=returns, basis=decay)
    halved = scratch.moves(weights, 0.0 * gradient, lr=_RATE / 2)
    fractions = [-move / weights for move in (*still, halved[0])]
    full, again, half = (float(f.mean()) for f in fractions)
    even = all(bool((f - f.mean()).abs().max() <= 1e-3 * abs(full)) for f in fractions)
    if even and abs(full - again) <= 1e-3 * abs(full) and 0.0 < full < 0.5:
        by_rate = abs(half / full - 0.5) < 0.1
        less = float((scratch.moves(weights, 0.0 * gradient, **lesser)[0] / -weights).mean())
        basis = decay if abs(less / full - 0.5) <= 1e-3 else 0.0
        unit = full / _RATE if by_rate else full
        return UpdateRule(unit, by_rate, 0.0, relative, returns, basis=basis)
    coupled = float(scratch.options.get("weight_decay", 0.0))
    known = _alike(still, scratch.moves(weights, coupled * weights, **without))
    less_still = scratch.moves(weights, 0.0 * gradient, **lesser)
    in_turn = _alike(less_still, scratch.moves(weights, coupled / 2 * weights, **without))
    basis = decay if in_turn else 0.0
    return UpdateRule(0.0, True, coupled, relative, returns, known, basis)


def _alike(moves: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(moves, others, strict=True)
    return all(torch.allclose(own, other, rtol=1e-3, atol=1e-9) for own, other in pairs)


def _returns(
    scratch: _Scratch, weights: Tensor, gradient: Tensor, without: Mapping[str, Any]
) -> bool:
    """Whether most of a manual movement after the first update is gone some updates later."""
    nudge = 0.1 * torch.ones_like(weights)
    ends = []
    for moved in (0.0 * nudge, nudge):
        gradients = [gradient * (-1.0) ** k for k in range(_PATIENCE)]
        ends.append(scratch.follow(weights, gradients, moved, **{**without, "lr": 1e-6}))
    kept = ((ends[1] - ends[0]) * nudge).sum() / nudge.square().sum()
    return not bool(kept > 0.7)


@final
class _Scratch:
    """Copies of an optimizer that update a scratch parameter.

    Args:
        optimizer: The optimizer.
        group: The parameter group whose options the copies use.
    """

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        # The plain implementation gives the same updates, and works on every tensor.
        plain = {name: False for name in ("fused", "capturable", "foreach") if name in group}
        self.options = {k: _detached(v) for k, v in group.items() if k != "params"} | plain
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)

    def moves(self, weights: Tensor, gradient: Tensor, **options: Any) -> list[Tensor]:
        """Return two updates from the same weights with the same gradient, shape (2, 2) each.

        The first update of all is left out, since some optimizers only initialise their state in
        it.
        """
        copied, p = self._copy(weights, options)
        found = []
        for _ in range(3):
            with torch.no_grad():
                p.copy_(weights)
            self._update(copied, p, gradient)
            found.append(p.detach() - weights)
        return found[1:]

    def follow(
        self, weights: Tensor, gradients: Sequence[Tensor], moved: Tensor, **options: Any
    ) -> Tensor:
        """Return the weights after some updates; ``moved`` is added after the first one."""
        copied, p = self._copy(weights, options)
        for k, gradient in enumerate(gradients):
            self._update(copied, p, gradient)
            if k == 0:
                with torch.no_grad():
                    p.add_(moved)
        return p.detach()

    def _copy(self, weights: Tensor, options: Mapping[str, Any]) -> tuple[Any, nn.Parameter]:
        p = nn.Parameter(weights.clone())
        copied = _copied(self._optimizer)
        own = {**{k: _detached(v) for k, v in self.options.items()}, "lr": _RATE, **options}
        if isinstance(self.options["lr"], Tensor):
            own["lr"] = torch.tensor(own["lr"])
        copied.param_groups = [{**own, "params": [p]}]
        return copied, p

    def _update(self, copied: Any, p: nn.Parameter, gradient: Tensor) -> None:
        p.grad = gradient.clone()
        with torch.enable_grad():
            self._step(copied)


def second_copy(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """Return the name of the state to which an optimizer moves weights back, or "".

    A state that looks like a copy of the weights may also be an average for validation, or the
    weights before the last update. It is a second copy if a scratch parameter follows where its
    state is moved. If that cannot be tried, name and values decide.

    Args:
        optimizer: Any torch optimizer, after an update; it and its state are not changed.
        group: One of its parameter groups.
    """
    looks = {(n, p.dtype) for p in group["params"] for n in _like(optimizer.state.get(p, {}), p)}
    for name, dtype in sorted(looks, key=str):
        try:
            with _quiet():
                follows = _follows(_Scratch(optimizer, group), name, dtype)
        except Exception:  # the optimizer may require other parameters than a scratch one
            follows = True
        if follows:
            return name
    return ""


def _like(state: Mapping[str, Any], p: Tensor) -> Iterator[str]:
    """Names of states that look like a copy of a parameter."""
    weights = p.detach()
    for name, value in state.items():
        named = any(word in str(name).lower() for word in _SECOND_COPIES)
        if named and isinstance(value, Tensor) and value.shape == weights.shape:
            off = (value.to(weights) - weights).norm()
            if bool(weights.any()) and bool(off < 0.5 * weights.norm()):
                yield str(name)


def _follows(scratch: _Scratch, name: str, dtype: torch.dtype) -> bool:
    """Whether weights come to where a state is moved after the first update."""
    weights, gradient = (torch.tensor(x, dtype=dtype) for x in (_WEIGHTS, _GRADIENT))
    without = {option: 0.0 for option in scratch.options if "weight_decay" in option}
    paths: list[list[Tensor]] = []
    for nudge in (0.0, 0.1):
        copied, p = scratch._copy(weights, {**without, "lr": 1e-6})
        paths.append([])
        for k in range(_LONG_PATIENCE):
            scratch._update(copied, p, gradient * (-1.0) ** k)
            if k == 0:
                copied.state[p][name].add_(nudge)
            paths[-1].append(p.detach().to(torch.float64, copy=True))
    return any(float((b - a).mean()) > 0.02 for a, b in zip(*paths, strict=True))


def _copied(optimizer: Optimizer) -> Any:
    """Copy an optimizer with its attributes, but without groups, state and hooks."""
    scratch = object.__new__(type(optimizer))
    own: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if name in ("param_groups", "state") or name == "step":
            continue
        hooks = isinstance(value, OrderedDict) and "hooks" in name
        own[name] = OrderedDict() if hooks else _detached(value)
    vars(scratch).update(own, param_groups=[], state=defaultdict(dict))
    return scratch


def _detached(value: Any) -> Any:
    """Copy plain data, small tensors and generators; other objects are shared."""
    if isinstance(value, Tensor):
        return value.detach().clone() if value.numel() < 64 else value
    if isinstance(value, torch.Generator):
        # A draw from the user's generator would change the run.
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, dict):
        return type(value)() if isinstance(value, defaultdict) else {
            k: _detached(v) for k, v in value.items()
        }  # fmt: skip
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_detached(v) for v in value)
    return copy.copy(value) if isinstance(value, (int, float, str, bool, type(None))) else value


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings and random numbers of the scratch updates from the user's run."""
    import warnings

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        yield
