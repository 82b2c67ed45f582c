"""The probe of an optimizer: copies of it update four weights, which shows how it updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.interrupts import failures_suppressed, raise_interrupt
from hybrid_predict.torch import ranks, shards
from hybrid_predict.torch.optimizer_copy import OptimizerCopy, without_trace

_WEIGHTS, _GRADIENT = ((1.0, -2.0), (3.0, 0.5)), ((0.3, 0.2), (-0.1, 0.4))
_RATE = 0.01
"""Learning rate of a probe; with the user's own, rounding might hide the decay."""

_FAINT = 1e-6
"""Weight decay that moves nothing; some optimizers follow the weights' size only with any."""

_PATIENCE, _LONG, _LONGEST = 16, 32, 128
"""Number of updates in which an optimizer with a second copy of the weights returns to it, one that
pulls to a stored point does so, and one returns to a state that looks like a second copy."""

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal."""

_SECOND_COPIES = ("slow", "lookahead", "master", "shadow")
"""Words in the names of states that may hold a second copy of the weights."""

DECAY = "whose weight decay could not be found out"
PULL = "whose updates depend on where the weights were before, as by a pull to a stored point"
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
        """Return the rule for other values of the options; None if they need another probe."""
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
    """Find the rule of a parameter group by a probe, which changes nothing.

    With a zero gradient, decoupled decay removes the same fraction of every weight in each update.
    Coupled decay of c has the same effect as a gradient of c times the weights, so a gradient of
    -c times the weights stops the updates. Updates are relative if they grow with the weights
    although the gradient stays the same. Weights that are moved between two updates stay moved,
    unless the optimizer keeps a second copy of them; and the next update is the same as if they
    had always been there, unless the optimizer pulls them to a stored point.
    """
    try:
        with without_trace():
            return _Probe(optimizer, group).rule()
    except Exception as error:  # the optimizer may require other parameters than the probe's
        raise_interrupt(error)
        unknown = f"{DECAY} with a copy of it ({ranks.summary(error)})"
        return UpdateRule(sign=-1.0 if group.get("maximize") else 1.0, unknown=unknown)


def second_copy(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """Return after an update the state to which an optimizer moves weights back, or "".

    A state that looks like a copy of the weights may also be an average for validation, or the
    weights before the last update. It is a second copy if the probe's weights follow where its
    state is moved, or if that cannot be tried. Every rank has to call it.
    """
    looks = {(n, p.dtype) for p in group["params"] for n in _like(optimizer.state.get(p, {}), p)}
    for name, dtype in sorted(set().union(*ranks.gather(looks)), key=str):
        follows = True
        with failures_suppressed(), without_trace():  # it may require other parameters
            follows = _Probe(optimizer, group, dtype).follows_state(name)
        if follows:
            return name
    return ""


def _like(state: Mapping[str, Any], p: Tensor) -> Iterator[str]:
    """Return the names of states that look like a copy of a parameter, or of this rank's shard."""
    weights = shards.local(p.detach())
    for name, state_value in state.items():
        named = any(word in str(name).lower() for word in _SECOND_COPIES)
        value = shards.local(state_value) if isinstance(state_value, Tensor) else None
        if named and value is not None and value.shape == weights.shape:
            off = (value.to(weights) - weights).norm()
            if bool(weights.any()) and bool(off < 0.5 * weights.norm()):
                yield str(name)


@final
class _Probe:
    """Updates of copies of an optimizer, in 64 bits because rounding can look like decay."""

    def __init__(
        self, optimizer: Optimizer, group: Mapping[str, Any], dtype: torch.dtype = torch.float64
    ) -> None:
        self._copies = OptimizerCopy(optimizer, group)
        self._options = self._copies.options
        self._numbers = {
            name: number(self._options, name)
            for name, value in self._options.items()
            if name != "lr" and not isinstance(value, bool) and number(self._options, name)
        }
        self._weights = torch.tensor(_WEIGHTS, dtype=dtype)
        self._gradient = torch.tensor(_GRADIENT, dtype=dtype)
        self._zero = torch.zeros_like(self._weights)

    def rule(self) -> UpdateRule:
        rate = self._options["lr"]
        if isinstance(rate, Tensor) and rate.device.type != "cpu" and bool(rate < 0):
            return UpdateRule(unknown=DEVICE_RATE)
        sign = self._sign()
        rule = self._decay(sign) if sign else UpdateRule(unknown=DIRECTION)
        decays = {name for name, _, proportional in rule.basis if proportional}
        without = {n: 0.0 for n in self._options if n in decays or "weight_decay" in n}
        faint = {name: _FAINT if self._options[name] else 0.0 for name in without}
        short, long = (
            self._moves(scale * self._weights, self._gradient, **faint)[0].norm()
            for scale in (0.25, 2.0)
        )
        relative = bool(long > 3.0 * short > 0)
        return replace(rule, relative=relative, returns=self._returns(without), sign=sign or 1.0)

    def follows_state(self, name: str) -> bool:
        """Return whether weights follow a state that is moved after the first update."""
        without = {option: 0.0 for option in self._options if "weight_decay" in option}
        return any(float(apart.mean()) > 0.02 for apart in self._nudged(without, _LONGEST, name))

    def _sign(self) -> float:
        """1 if the optimizer goes against the gradient, -1 if along, 0 if neither was seen."""
        ends = []
        for turn in (1.0, -1.0):
            copied, p = self._copy(1e-3 * self._weights, {})
            for _ in range(_PATIENCE):
                self._copies.update(copied, p, turn * self._gradient)
            ends.append(p.detach())
        apart = ends[1] - ends[0]
        lengths = apart.norm() * self._gradient.norm()
        cosine = float((apart * self._gradient).sum() / lengths)
        seen = bool(lengths > 1e-12) and abs(cosine) > 0.05
        return (1.0 if cosine > 0 else -1.0) if seen else 0.0

    def _decay(self, sign: float) -> UpdateRule:
        """Return the part of the rule that concerns weight decay."""
        still = self._moves(self._weights, self._zero)
        if not any(bool(move.any()) for move in still):
            return UpdateRule(unknown=PULL if self._pulls(0.0, sign) else "")
        unknown = DECAY
        # In their first updates, some optimizers make of coupled decay what decoupled decay does.
        for fit in (self._decoupled, self._coupled):
            rule = fit(sign, still)
            if rule is not None and not self._pulls(rule.coupled, sign):
                return rule
            unknown = unknown if rule is None else PULL
        return UpdateRule(unknown=unknown)

    def _decoupled(self, sign: float, still: Sequence[Tensor]) -> UpdateRule | None:
        """Return the rule if each update removes a fraction of the weights, else None."""
        halved = self._moves(self._weights, self._zero, lr=_RATE / 2)
        fractions = [-move / self._weights for move in (*still, halved[0])]
        full, again, half = (float(f.mean()) for f in fractions)
        even = all(bool((f - f.mean()).abs().max() <= _CLOSE * abs(full)) for f in fractions)
        if not (even and abs(full - again) <= _CLOSE * abs(full) and 0.0 < full < 0.5):
            return None
        by_rate = abs(half / full - 0.5) < 0.1
        if not by_rate and abs(half / full - 1.0) >= 0.1:
            return None

        def is_multiple(share: float, options: Mapping[str, float]) -> bool:
            less = self._moves(self._weights, self._zero, **options)[0] / -self._weights
            return abs(float(less.mean()) / full - share) <= _CLOSE

        return UpdateRule(
            full / _RATE if by_rate else full, by_rate, basis=self._basis(is_multiple)
        )

    def _coupled(self, sign: float, still: Sequence[Tensor]) -> UpdateRule | None:
        """Return the rule if a multiple of the weights is added to the gradient, else None."""

        def pull(coupled: float, options: Mapping[str, float]) -> float:
            moves = self._moves(self._weights, -sign * coupled * self._weights, **options)
            return float((torch.stack(moves) * self._weights).sum())

        def stops(coupled: float, options: Mapping[str, float]) -> bool:
            below, above = (pull((1.0 + off) * coupled, options) for off in (-_CLOSE, _CLOSE))
            return below < 0.0 < above

        named = sorted(self._numbers, key=lambda name: name != "weight_decay")
        values = [self._numbers[name] for name in named if self._numbers[name] > 0.0]
        coupled = next((value for value in values if stops(value, {})), None)
        coupled = coupled or _bisected(lambda value: pull(value, {}))
        elsewhere = -0.5 * self._weights.flip(0)
        equal = self._moves(elsewhere, sign * coupled * (self._weights - elsewhere))
        halved = {"lr": _RATE / 2}
        if not (stops(coupled, {}) and stops(coupled, halved) and _alike(still, equal)):
            return None
        basis = self._basis(lambda share, options: stops(share * coupled, options))
        return UpdateRule(coupled=coupled, basis=basis)

    def _basis(
        self, is_multiple: Callable[[float, Mapping[str, float]], bool]
    ) -> tuple[tuple[str, float, bool], ...]:
        """Return the options that decay depends on, see :class:`UpdateRule`.

        ``is_multiple`` tells whether decay is a share of what it was, if options are others.
        """
        basis = []
        for name, value in self._numbers.items():
            with failures_suppressed():  # half a number may not be a value of the option
                halved = {name: value / 2}
                if not is_multiple(1.0, halved):
                    basis.append((name, value, is_multiple(0.5, halved)))
        return tuple(basis)

    def _returns(self, without: Mapping[str, Any]) -> bool:
        """Return whether most of a manual movement after the first update is gone later."""
        apart, nudge = self._nudged(without, _PATIENCE)[-1], torch.full_like(self._weights, 0.1)
        kept = (apart * nudge).sum() / nudge.square().sum()
        return not bool(kept > 0.7)

    def _nudged(self, without: Mapping[str, Any], updates: int, state: str = "") -> list[Tensor]:
        """Return how far a nudge after the first update has moved the weights, after each one.

        It moves the state of this name, or the weights themselves; nothing else moves them far.
        """
        paths: list[list[Tensor]] = []
        for nudge in (0.0, 0.1):
            copied, p = self._copy(self._weights, {**without, "lr": 1e-6})
            paths.append([])
            for k in range(updates):
                self._copies.update(copied, p, self._gradient * (-1.0) ** k)
                if k == 0:
                    (copied.state[p][state] if state else p.detach()).add_(nudge)
                paths[-1].append(p.detach().to(torch.float64, copy=True))
        return [there - here for here, there in zip(*paths, strict=True)]

    def _pulls(self, coupled: float, sign: float) -> bool:
        """Return whether updates depend on where the weights were at the first one."""
        # What an optimizer makes of a gradient and of coupled decay is the same in both runs.
        total, runs = self._gradient if coupled else self._zero, []
        for first in (self._weights, self._weights + 1.0):
            places = [first] + [self._weights] * _LONG
            gradients = [sign * (total - coupled * place) for place in places]
            runs.append(self._walk(places, gradients)[1:])
        here, there = runs
        return not _alike(here, there, rtol=1e-6)

    def _moves(self, weights: Tensor, gradient: Tensor, **options: Any) -> list[Tensor]:
        """Return two updates from the same weights with the same gradient, shape (2, 2) each."""
        # In the first update of all, some optimizers only initialise their state.
        return self._walk([weights] * 3, [gradient] * 3, **options)[1:]

    def _walk(
        self, places: Sequence[Tensor], gradients: Sequence[Tensor], **options: Any
    ) -> list[Tensor]:
        """Return the updates from each of some places, to which the weights are moved before."""
        copied, p = self._copy(places[0], options)
        moves = []
        for place, gradient in zip(places, gradients, strict=True):
            with torch.no_grad():
                p.copy_(place)
            self._copies.update(copied, p, gradient)
            moves.append(p.detach() - place)
        return moves

    def _copy(self, weights: Tensor, options: Mapping[str, Any]) -> tuple[Any, nn.Parameter]:
        copied, group = self._copies.make(p := nn.Parameter(weights.clone()))
        given = {"lr": _RATE, **options}
        if isinstance(group["lr"], Tensor):
            given["lr"] = torch.tensor(given["lr"])
        group.update(given)
        return copied, p


def _bisected(pull: Callable[[float], float]) -> float:
    """The number between 1e-9 and 1e3 at which a function turns positive."""
    low, high = 1e-9, 1e3
    for _ in range(48):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pull(middle) < 0.0 else (low, middle)
    return high


def _alike(moves: Sequence[Tensor], others: Sequence[Tensor], rtol: float = _CLOSE) -> bool:
    pairs = zip(moves, others, strict=True)
    return all(torch.allclose(one, other, rtol=rtol, atol=1e-6 * rtol) for one, other in pairs)
