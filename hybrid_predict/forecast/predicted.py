"""The predicted steps right before an open full step: their movement, verdict and undo."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.forecast.forecaster import Forecaster
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.model.traces import BufferCopies, watch_state_dict
from hybrid_predict.optimizers.wrapper import Options
from hybrid_predict.policy.policy import Key
from hybrid_predict.policy.predicting import Part, PredictingPolicy
from hybrid_predict.policy.verdict import NO_UPDATE, READ, Slopes, Verdict
from hybrid_predict.ranks import shards
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import WeightDelta, write_rounded

_TINY = torch.finfo(torch.float32).tiny


@final
class Forecast(NamedTuple):
    """The movement of one predicted step."""

    delta: WeightDelta
    keys: list[Key]  # kind and optimizer of each of its tensors
    drifts: list[Tensor]  # how far the drift of each would move at the same learning rate, 0-dim


def joint_forecast(
    members: Sequence[tuple[Part, Forecaster, list[float]]],
    policy: PredictingPolicy,
    calls: Mapping[int, int],
) -> Forecast:
    """Forecast the movement of one predicted step, for all groups that do not rest together.

    ``members`` has the learning rate of every parameter of a group, and ``calls`` the number of
    updates in a full step by optimizer.
    """
    rates = defaultdict[Key, float](float)
    for part, _, own in members:
        rates[part.key] = max(rates[part.key], *map(abs, own))
    policy.renew(rates)
    deltas: list[WeightDelta] = []
    keys: list[Key] = []
    drifts: list[Tensor] = []
    for part, forecaster, own in members:
        times = calls[part.optimizer]
        if multiple := times * policy.multiples(part):
            delta, lengths = forecaster.forecast(own)
            deltas.append(delta if multiple == 1 else delta.scaled(multiple))
            keys += [part.key] * len(delta.names)
            drifts += lengths if times == 1 else [times * length for length in lengths]
    names = tuple([name for delta in deltas for name in delta.names])
    directions = tuple([direction for delta in deltas for direction in delta.directions])
    factors = tuple([factor for delta in deltas for factor in delta.factors])
    return Forecast(WeightDelta(names, directions, factors), keys, drifts)


@final
class PredictedSteps:
    """``count`` predicted steps at once, as part of an open full step, until their :meth:`end`.

    ``carries`` has the Kahan compensation of half-precision weights by name, and ``calls`` the
    updates of the full step so far by optimizer, as the step counts them. Each optimizer's first
    update settles what it has verified, whatever is read in between withdraws them, and the step's
    end ends them.
    """

    def __init__(
        self,
        mapper: ParameterMapper,
        policy: PredictingPolicy,
        forecast: Forecast,
        count: int,
        carries: dict[str, Tensor],
        calls: Mapping[int, int],
    ) -> None:
        self.count = count
        self.held = ""  # why they are undone; empty if they stand
        self.is_back = False  # whether the weights are those before them again
        self.reached: set[int] = set()  # parameters that their optimizer can update, by ``id``
        # Of the tensors that have a gradient, by name, as far as verifying steps were read:
        self._lengths: dict[str, float] = {}  # of the movement
        self._drifts: dict[str, float] = {}  # how far drifts move at the same learning rate
        self._dots: dict[str, float] = {}  # inner product of movement and gradient
        self._mapper = mapper
        self._policy = policy
        self._forecast = forecast
        self._calls = calls
        self._earlier = ""  # ``held`` before the last verdict
        self._handles: list[Any] = []
        # The movement of all of them together; None after their end:
        self.delta: WeightDelta | None = forecast.delta.scaled(count)
        self._buffers: BufferCopies | None = BufferCopies(mapper.buffered)
        by_name = dict(zip(mapper.names, mapper.parameters, strict=True))
        self._parameters = [by_name[name] for name in forecast.delta.names]
        values = [shards.local(p) for p in self._parameters]
        self._copies = lists.clones(values)
        pairs = zip(forecast.delta.names, values, strict=True)
        self._carries = [carries.get(n) if x.dtype in lists.HALF else None for n, x in pairs]
        self._kept = [None if carry is None else carry.clone() for carry in self._carries]

    def take(self) -> None:
        """Move the weights; state dicts of the model are watched from here on."""
        assert self.delta is not None
        loading = partial(self.withdraw, loading=True)
        self._handles += watch_state_dict(self._mapper.model, self.withdraw, loading)
        values = [shards.local(p) for p in self._parameters]
        columns = zip(values, self.delta.directions, self.delta.factors, self._carries, strict=True)
        plain: list[tuple[Tensor, Tensor, float]] = []
        with torch.no_grad():
            for value, direction, factor, carry in columns:
                if carry is not None:
                    wanted = value.float() + factor * lists.upcast(direction)
                    write_rounded(value, wanted, carry)
                else:
                    plain.append((value, direction, factor))
            if plain:
                lists.add_scaled(*map(list, zip(*plain, strict=True)))
        self._mapper.written()

    @property
    def verdict(self) -> Verdict:
        """The verdict, at the end of the full step."""
        return Verdict.UNDONE if self.held else Verdict.STANDS

    @property
    def length(self) -> float | None:
        """Length of each of them, in lengths of the drift; None if it is unknown."""
        moved = math.hypot(*self._lengths.values())
        drift = math.hypot(*self._drifts.values())
        known = math.isfinite(moved + drift) and drift > 0.0
        return moved / (drift * self.count) if known else None

    def alignments(self, norms: Mapping[str, float]) -> dict[str, float]:
        """Return how far gradients and movement agree, by the gradients' norms."""
        sizes = {name: norms[name] * length for name, length in self._lengths.items()}
        return {name: -self._dots[name] / max(_TINY, size) for name, size in sizes.items()}

    def shown(self, slopes: Sequence[float]) -> dict[str, Any]:
        """Return what the policy learns from them, as arguments of `Outcome`."""
        known = Slopes(*slopes) if slopes else None
        keys = dict(zip(self._forecast.delta.names, self._forecast.keys, strict=True))
        ends = defaultdict[Key, float](float)
        for name, dot in self._dots.items():
            ends[keys[name]] += dot
        return {"predicted": self.count, "held": self.held, "slopes": known, "ends": ends}

    def reopen(self) -> None:
        """Discard the last verdict, of an update that has raised; what others decided stays."""
        self.held = self._earlier

    def measure(
        self,
        index: int,
        gradients: Mapping[str, Tensor],
        options: Mapping[int, Options],
        scale: Tensor | None,
    ) -> tuple[dict[str, tuple[list[Tensor], list[Tensor]]], Tensor]:
        """Measure them by an optimizer's gradients, which are dense and multiplied by ``scale``.

        Return 0-dim norms of local shards by name, with their parameters; and inner products of
        movement and gradients, shape (K,). They stay on the device.
        """
        delta = self.delta
        parameters = self._parameters
        assert delta is not None
        own = self._of(index)
        met = [k for k in own if delta.names[k] in gradients]
        directions = [delta.directions[k] for k in met]
        pairs = zip([gradients[delta.names[k]] for k in met], directions, strict=True)
        dots = lists.dots([g.reshape(direction.shape) for g, direction in pairs], directions)
        if scale is not None:
            dots = dots / scale.to(dots.device)
        moved = [parameters[k] for k in met]
        signs = [options[key].sign for key in map(id, moved)]
        factors = [sign * delta.factors[k] for sign, k in zip(signs, met, strict=True)]
        products = lists.scaled(dots, factors).float()
        if counts := shards.norm_factors(moved):
            products = lists.scaled(products, [count**2 for count in counts])
        sizes = lists.norms([delta.directions[k] for k in own])
        lengths = lists.scaled(sizes, [*map(abs, [delta.factors[k] for k in own])]).unbind()
        drifts = [self._forecast.drifts[k] for k in met]
        every = [parameters[k] for k in own]
        return {"drifts": (drifts, moved), "lengths": (list(lengths), every)}, products

    def judge(
        self,
        index: int,
        gradients: Mapping[str, float],
        loss: float | None,
        numbers: Mapping[str, list[float]],
    ) -> str:
        """Return why an optimizer's update does not verify them; empty if it does.

        ``gradients`` are norms by name, and ``numbers`` those that :meth:`measure` has asked for.
        """
        own = [self._forecast.delta.names[k] for k in self._of(index)]
        met = [name for name in own if name in gradients]
        lengths = dict(zip(own, numbers["lengths"], strict=True))
        self._lengths |= {name: lengths[name] for name in met}
        self._drifts.update(zip(met, numbers["drifts"], strict=True))
        self._dots.update(zip(met, numbers["dots"], strict=True))
        finite = all(map(math.isfinite, lengths.values()))
        norm = math.hypot(*gradients.values())
        back, skipped = numbers["head"][2:]
        lost = READ if back else NO_UPDATE if skipped else ""
        held = lost or self._policy.cause(index, norm, loss, finite=finite)
        self._earlier = self.held
        self.held = held or self.held
        return held

    def settle(self, index: int, *, updated: bool) -> None:
        """Undo what the first update of an optimizer has not verified."""
        own = self._of(index)
        if updated:  # but for what left the optimizer or was frozen inside the step
            self._put_back([k for k in own if id(self._parameters[k]) not in self.reached])
        else:
            self._undo(own)

    def withdraw(self, reason: str = READ, *, loading: bool = False) -> None:
        """Undo what no update has verified, at any point of the step.

        The updates that were to verify it do not happen: their gradients may be those of the
        predicted weights. If the model is ``loading``, later undoing keeps what it has loaded.
        """
        if members := self._unverified():
            self.held = self.held or reason
            self._undo(members)
            self.is_back = True
        if loading:
            self._buffers = None

    def end(self, reason: str = NO_UPDATE) -> None:
        """Undo what no update has verified, and let go of the model."""
        self.withdraw(reason)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.delta = self._buffers = None
        self._copies.clear()
        self._kept.clear()

    def _undo(self, members: Sequence[int]) -> None:
        if not self.is_back:
            self._put_back(members)
        if self._buffers is not None:
            self._buffers.restore()

    def _put_back(self, members: Sequence[int]) -> None:
        """Undo the movement of weights, by position, bit for bit.

        It may come between a forward and a backward pass, so tensors keep their versions.
        """
        if self.delta is None or not members:
            return
        for k in members:
            # User code may have moved the weights to other memory.
            shards.local(self._parameters[k]).data.copy_(self._copies[k])
            carry = self._carries[k]
            kept = self._kept[k]
            if carry is not None and kept is not None:
                carry.copy_(kept)
        self._mapper.written()

    def _of(self, index: int) -> list[int]:
        """Return the positions in the movement of an optimizer's tensors."""
        return [k for k, (_, own) in enumerate(self._forecast.keys) if own == index]

    def _unverified(self) -> list[int]:
        """Return the positions in the movement of tensors whose optimizer has not updated."""
        return [k for k, (_, own) in enumerate(self._forecast.keys) if not self._calls[own]]
