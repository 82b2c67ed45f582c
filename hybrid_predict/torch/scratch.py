"""Finds out how an optimizer updates, by letting a copy of it update a scratch parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.torch import ranks
from hybrid_predict.torch.optimizer_copy import OptimizerCopy, without_trace
from hybrid_predict.torch.update_rule import UpdateRule, numbers

WEIGHTS = ((1.0, -2.0), (3.0, 0.5))
GRADIENT = ((0.3, 0.2), (-0.1, 0.4))
_RATE = 0.01
"""Learning rate of scratch updates; with the user's own, rounding might hide the decay."""

_FAINT = 1e-6
"""Weight decay that moves nothing; some optimizers follow the weights' size only with any."""

_PATIENCE = 16
"""Number of updates in which an optimizer with a second copy of the weights returns to it."""

_LONG = 32
"""Number of updates in which an optimizer that pulls to a stored point does so."""

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal."""

DECAY = "whose weight decay could not be found out"
PULL = "whose updates depend on where the weights were before, as by a pull to a stored point"
DIRECTION = "that was not seen to go along or against the gradient"
DEVICE_RATE = "whose negative learning rate is a tensor on a device"
"""What about an optimizer could not be found out."""


def find_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """Find the rule of a parameter group by updating a scratch parameter of four entries.

    With a zero gradient, decoupled decay removes the same fraction of every weight in each update.
    Coupled decay of c has the same effect as a gradient of c times the weights, so a gradient of
    -c times the weights stops the updates. Updates are relative if they grow with the weights
    although the gradient stays the same. Weights that are moved between two updates stay moved,
    unless the optimizer keeps a second copy of them; and the next update is the same as if they
    had always been there, unless the optimizer pulls them to a stored point.

    Args:
        optimizer: Any torch optimizer; neither it, nor what it holds, nor any random number
            generator changes.
        group: One of its parameter groups.
    """
    sign = -1.0 if group.get("maximize") else 1.0
    try:
        with without_trace():
            return _probe(Scratch(OptimizerCopy(optimizer, group)))
    except Exception as error:  # the optimizer may require other parameters than a scratch one
        told = f"{DECAY} with a copy of it ({ranks.summary(error)})"
        return UpdateRule(sign=sign, unknown=told)


def _probe(scratch: Scratch) -> UpdateRule:
    rate = scratch.options["lr"]
    if isinstance(rate, Tensor) and bool(rate < 0) and rate.device.type != "cpu":
        return UpdateRule(unknown=DEVICE_RATE)
    # 64 bits, because rounding in 32 bits can look like decay.
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    gradient = torch.tensor(GRADIENT, dtype=torch.float64)
    sign = _sign(scratch, 1e-3 * weights, gradient)
    rule = _decay(scratch, weights, gradient, sign) if sign else UpdateRule(unknown=DIRECTION)
    decays = {name for name, _, proportional in rule.basis if proportional}
    without = {name: 0.0 for name in scratch.options if name in decays or "weight_decay" in name}
    faint = {name: _FAINT if scratch.options[name] else 0.0 for name in without}
    short, long = (scratch.moves(s * weights, gradient, **faint)[0].norm() for s in (0.25, 2.0))
    relative = bool(long > 3.0 * short > 0)
    returns = _returns(scratch, weights, gradient, without)
    return replace(rule, relative=relative, returns=returns, sign=sign or 1.0)


def _sign(scratch: Scratch, weights: Tensor, gradient: Tensor) -> float:
    """1 if the optimizer goes against the gradient, -1 if along, 0 if neither was seen."""
    ends = [scratch.follow(weights, [s * gradient] * _PATIENCE) for s in (1.0, -1.0)]
    apart = ends[1] - ends[0]
    lengths = apart.norm() * gradient.norm()
    cosine = float((apart * gradient).sum() / lengths)
    seen = bool(lengths > 1e-12) and abs(cosine) > 0.05
    return (1.0 if cosine > 0 else -1.0) if seen else 0.0


def _decay(scratch: Scratch, weights: Tensor, gradient: Tensor, sign: float) -> UpdateRule:
    """The rule as far as weight decay is concerned."""
    still = scratch.moves(weights, 0.0 * weights)
    moves = any(bool(move.any()) for move in still)
    found = UpdateRule(unknown=DECAY)
    # In their first updates, some optimizers make of coupled decay what decoupled decay does.
    for fit in (_decoupled, _coupled) if moves else (_undecayed,):
        rule = fit(scratch, weights, sign, still)
        if rule is not None:
            if not _pulls(scratch, weights, gradient, replace(rule, sign=sign)):
                return rule
            found = UpdateRule(unknown=PULL)
    return found


def _undecayed(*_: Any) -> UpdateRule:
    return UpdateRule()


def _decoupled(
    scratch: Scratch, weights: Tensor, sign: float, still: Sequence[Tensor]
) -> UpdateRule | None:
    """The rule if each update removes a fraction of the weights, else None."""
    halved = scratch.moves(weights, 0.0 * weights, lr=_RATE / 2)
    fractions = [-move / weights for move in (*still, halved[0])]
    full, again, half = (float(f.mean()) for f in fractions)
    even = all(bool((f - f.mean()).abs().max() <= _CLOSE * abs(full)) for f in fractions)
    if not (even and abs(full - again) <= _CLOSE * abs(full) and 0.0 < full < 0.5):
        return None
    by_rate = abs(half / full - 0.5) < 0.1
    if not by_rate and abs(half / full - 1.0) >= 0.1:
        return None

    def is_multiple(share: float, options: Mapping[str, float]) -> bool:
        less = scratch.moves(weights, 0.0 * weights, **options)[0] / -weights
        return abs(float(less.mean()) / full - share) <= _CLOSE

    return UpdateRule(
        full / _RATE if by_rate else full, by_rate, basis=_basis(scratch, is_multiple)
    )


def _coupled(
    scratch: Scratch, weights: Tensor, sign: float, still: Sequence[Tensor]
) -> UpdateRule | None:
    """The rule if a multiple of the weights is added to the gradient, else None."""

    def pull(coupled: float, options: Mapping[str, float]) -> float:
        moves = scratch.moves(weights, -sign * coupled * weights, **options)
        return float((torch.stack(moves) * weights).sum())

    def stops(coupled: float, options: Mapping[str, float]) -> bool:
        below, above = (pull((1.0 + off) * coupled, options) for off in (-_CLOSE, _CLOSE))
        return below < 0.0 < above

    own = numbers(scratch.options)
    named = sorted(own, key=lambda name: name != "weight_decay")
    coupled = next((own[name] for name in named if own[name] > 0.0 and stops(own[name], {})), None)
    coupled = coupled or _bisected(lambda value: pull(value, {}))
    elsewhere = -0.5 * weights.flip(0)
    equal = scratch.moves(elsewhere, sign * coupled * (weights - elsewhere))
    if not (stops(coupled, {}) and stops(coupled, {"lr": _RATE / 2}) and _alike(still, equal)):
        return None
    basis = _basis(scratch, lambda share, options: stops(share * coupled, options))
    return UpdateRule(coupled=coupled, basis=basis)


def _bisected(pull: Callable[[float], float]) -> float:
    """The number between 1e-9 and 1e3 at which a function turns positive."""
    low, high = 1e-9, 1e3
    for _ in range(48):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pull(middle) < 0.0 else (low, middle)
    return high


def _basis(
    scratch: Scratch, is_multiple: Callable[[float, Mapping[str, float]], bool]
) -> tuple[tuple[str, float, bool], ...]:
    """The options that decay depends on, see :class:`UpdateRule`.

    Args:
        scratch: The copies.
        is_multiple: Whether decay is ``share`` times what it was, if options are others.
    """
    found = []
    for name, value in numbers(scratch.options).items():
        with suppress(Exception):  # half a number may not be a value of the option
            halved = {name: value / 2}
            if not is_multiple(1.0, halved):
                found.append((name, value, is_multiple(0.5, halved)))
    return tuple(found)


def _alike(moves: Sequence[Tensor], others: Sequence[Tensor], rtol: float = _CLOSE) -> bool:
    pairs = zip(moves, others, strict=True)
    return all(torch.allclose(own, other, rtol=rtol, atol=1e-6 * rtol) for own, other in pairs)


def _returns(
    scratch: Scratch, weights: Tensor, gradient: Tensor, without: Mapping[str, Any]
) -> bool:
    """Whether most of a manual movement after the first update is gone some updates later."""
    nudge = 0.1 * torch.ones_like(weights)
    ends = []
    for moved in (0.0 * nudge, nudge):
        gradients = [gradient * (-1.0) ** k for k in range(_PATIENCE)]
        ends.append(scratch.follow(weights, gradients, moved, **{**without, "lr": 1e-6}))
    kept = ((ends[1] - ends[0]) * nudge).sum() / nudge.square().sum()
    return not bool(kept > 0.7)


def _pulls(scratch: Scratch, weights: Tensor, gradient: Tensor, rule: UpdateRule) -> bool:
    """Whether updates depend on where the weights were at the first one.

    What an optimizer makes of a gradient and of coupled decay is the same in both runs.
    """
    total = gradient if rule.coupled else 0.0 * gradient
    runs = []
    for first in (weights, weights + 1.0):
        places = [first] + [weights] * _LONG
        gradients = [rule.sign * (total - rule.coupled * place) for place in places]
        runs.append(scratch.walk(places, gradients)[1:])
    here, there = runs
    return not _alike(here, there, rtol=1e-6)


@final
class Scratch:
    """Updates of copies of an optimizer.

    Args:
        copies: Makes the copies.
    """

    def __init__(self, copies: OptimizerCopy) -> None:
        self._copies, self.options = copies, copies.options

    def moves(self, weights: Tensor, gradient: Tensor, **options: Any) -> list[Tensor]:
        """Return two updates from the same weights with the same gradient, shape (2, 2) each.

        The first update of all is left out, since some optimizers only initialise their state in
        it.
        """
        return self.walk([weights] * 3, [gradient] * 3, **options)[1:]

    def walk(
        self, places: Sequence[Tensor], gradients: Sequence[Tensor], **options: Any
    ) -> list[Tensor]:
        """Return the updates from each of some places, to which the weights are moved before."""
        copied, p = self.copy(places[0], options)
        found = []
        for place, gradient in zip(places, gradients, strict=True):
            with torch.no_grad():
                p.copy_(place)
            self.update(copied, p, gradient)
            found.append(p.detach() - place)
        return found

    def follow(
        self,
        weights: Tensor,
        gradients: Sequence[Tensor],
        moved: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Return the weights after some updates; ``moved`` is added after the first one."""
        copied, p = self.copy(weights, options)
        for k, gradient in enumerate(gradients):
            self.update(copied, p, gradient)
            if k == 0 and moved is not None:
                with torch.no_grad():
                    p.add_(moved)
        return p.detach()

    def copy(self, weights: Tensor, options: Mapping[str, Any]) -> tuple[Any, nn.Parameter]:
        """Return a copy, and its parameter."""
        p = nn.Parameter(weights.clone())
        copied = self._copies.make(p)
        (group,) = copied.param_groups
        rate = {"lr": _RATE, **options}
        if isinstance(group["lr"], Tensor):
            rate["lr"] = torch.tensor(rate["lr"])
        group.update(rate)
        return copied, p

    def update(self, copied: Any, p: nn.Parameter, gradient: Tensor) -> None:
        """Let a copy update its parameter."""
        self._copies.update(copied, p, gradient)
