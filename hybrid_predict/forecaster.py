"""One forecast out of several predictors: each kind's predictor, its history and its horizons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.backends import AbstractBackend, ShardedBackend, TorchBackend
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError
from hybrid_predict.gradients import dense_gradient
from hybrid_predict.horizons import make_horizon
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import ParameterMapper, WeightDelta
from hybrid_predict.predictors import make_predictor
from hybrid_predict.predictors.contract import check_delta


class Forecaster:
    """Forecasts the parameters of all kinds that have a predictor.

    Args:
        mapper: The model's parameters.
        optimizer: Who updates them.
        config: Which predictor serves which kind, and the horizon rule.
    """

    def __init__(
        self, mapper: ParameterMapper, optimizer: OptimizerWrapper, config: HybridConfig
    ) -> None:
        self._mapper, self._optimizer = mapper, optimizer
        self._policy, self._long = config.policy, config.long_horizon
        self._rule = make_horizon(config.horizon)
        predictors = {kind: make_predictor(p) for kind, p in config.predictors.items()}
        self.positions = mapper.select(predictors)
        self.kinds = [mapper.kinds[k] for k in self.positions]
        self._state = self._rule.init(self.kinds)
        self._parameters = [mapper.parameters[k] for k in self.positions]
        self._owners = optimizer.owners(self._parameters)
        self._groups = []
        parts = [(kind, k) for kind in predictors for k in range(len(optimizer.optimizers))]
        columns = list(zip(self.kinds, self._owners, strict=True))
        for part in parts:
            members = [i for i, own in enumerate(columns) if own == part]
            if not members:
                continue
            predictor = predictors[part[0]]
            names = [mapper.names[self.positions[i]] for i in members]
            like = mapper.values([self.positions[i] for i in members])
            chosen = self._chosen(members)
            sharded = any(distributed.is_sharded(p) for p in chosen)
            backend = ShardedBackend(chosen) if sharded else TorchBackend()
            state = predictor.init(names, like, backend)
            self._groups.append((predictor, state, members, backend))

    @property
    def roots(self) -> list[float] | None:
        """What ``distributed.roots`` gives for the forecast parameters."""
        return distributed.roots(self._parameters)

    @property
    def horizons(self) -> list[float]:
        """Horizon per forecast parameter, in optimizer updates."""
        return self._rule.horizons(self._state)

    def forecast(self, *, closed_loop: bool) -> WeightDelta:
        """The forecast of all kinds together, in the order of ``positions``.

        Raises:
            PredictorError: If a predictor gives one of another form than its parameters have.
        """
        horizons = self.horizons
        parts: dict[int, tuple[str, Tensor, float]] = {}
        for predictor, state, members, _ in self._groups:
            delta = predictor.forecast(
                state, [horizons[i] for i in members], closed_loop=closed_loop
            )
            like = self._mapper.values([self.positions[i] for i in members])
            check_delta(predictor, delta, state.names, like)
            columns = zip(delta.names, delta.directions, delta.factors, strict=True)
            parts.update(zip(members, columns, strict=True))
        ordered = [parts[i] for i in range(len(self.positions))]
        names, directions, factors = zip(*ordered, strict=True) if ordered else ((), (), ())
        return WeightDelta(tuple(names), tuple(directions), tuple(factors))

    def observe(self, displacement: Sequence[Tensor], applied: WeightDelta | None) -> None:
        """Show every predictor its part of a displacement, which may be overwritten.

        Those that replace the update have seen it in :meth:`observe_update` already.
        """
        for predictor, state, members, backend in self._groups:
            if not predictor.replaces_update:
                part = _part(applied, members)
                predictor.observe(state, [displacement[i] for i in members], part, backend)

    def observe_update(
        self, index: int, applied: WeightDelta | None, good: Tensor | None = None
    ) -> None:
        """Show an optimizer's updates to the predictors that replace them, and take those back.

        Args:
            index: Which optimizer has just updated.
            applied: The forecast before it, None without one.
            good: Whether the updates may stand, 0-dim; no history keeps those that are undone.
        """
        for predictor, state, members, backend in self._groups:
            if not predictor.replaces_update or self._owners[members[0]] != index:
                continue
            part = _part(applied, members)
            rules = self._optimizer.descent(index)
            chosen = self._chosen(members)
            positions = [self.positions[i] for i in members]
            points = self._mapper.points(positions, part)
            pairs = zip(self._mapper.values(positions), points, strict=True)
            updates = [_wide(value) - _wide(point) for value, point in pairs]
            gradients = [_descended(p, *rules[id(p)][1:]) for p in chosen]
            if part is not None:
                self._mapper.take_back(positions, points, [rules[id(p)][0] for p in chosen])
            _drop_unless_good(updates, gradients, backend, good)
            predictor.observe(state, updates, None, backend, gradients)

    def reconcile(self, index: int, applied: WeightDelta | None, horizon: float) -> None:
        """Let the state of optimizer ``index`` follow a forecast that is long enough."""
        if applied is not None and horizon >= self._long and self._policy != "keep":
            displacement = self._mapper.displacement_by_id(applied)
            self._optimizer.reconcile(displacement, horizon, self._policy, index)

    def update(self, rows: Sequence[int], alignments: Sequence[float]) -> None:
        """Adapt the horizons of these rows of ``positions`` to the alignments measured."""
        state = [self._state[i] for i in rows]
        adapted = self._rule.update(state, alignments, [self.kinds[i] for i in rows])
        for i, value in zip(rows, adapted, strict=True):
            self._state[i] = value

    def reject(self) -> None:
        """Adapt the horizons to a rejected forecast."""
        self._state = self._rule.reject(self._state, self.kinds)

    def state_dict(self) -> dict[str, Any]:
        """Histories and horizons; where parameters are sharded, every rank has to call it.

        Then the first rank gets whole histories on the host, and the others none.
        """
        groups = [(state.state_dict(), self._chosen(m)) for _, state, m, _ in self._groups]
        return {
            "horizons": list(self._state),
            "histories": [distributed.collected(history, like) for history, like in groups],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from saved histories and horizons.

        Raises:
            CheckpointError: If they belong to other parameters or predictors.
        """
        histories = saved["histories"]
        if len(histories) != len(self._groups) or len(saved["horizons"]) != len(self._state):
            raise CheckpointError(
                f"state: expected histories of {len(self._groups)} predictors, got "
                f"{len(histories)}. Resume with the configuration of the saved run."
            )
        for (_, state, members, backend), history in zip(self._groups, histories, strict=True):
            if history is None:
                raise CheckpointError(
                    "state: expected what rank 0 got from state_dict(), got another rank's. Where "
                    "parameters are sharded, save that of rank 0 and load it on every rank."
                )
            own = distributed.spread(history, self._chosen(members))
            state.load_state_dict(own, backend)
        self._state = [float(x) for x in saved["horizons"]]
        if not all(math.isfinite(h) and h >= 0 for h in self.horizons):
            raise CheckpointError(
                f"state: expected finite horizons, at least 0, got {self.horizons[:3]}. "
                "Resume from another checkpoint."
            )

    def _chosen(self, members: Sequence[int]) -> list[Tensor]:
        return [self._parameters[i] for i in members]


def _part(delta: WeightDelta | None, members: Sequence[int]) -> WeightDelta | None:
    """The forecast of some of the parameters."""
    if delta is None:
        return None
    return WeightDelta(
        tuple(delta.names[i] for i in members),
        tuple(delta.directions[i] for i in members),
        tuple(delta.factors[i] for i in members),
    )


def _descended(p: Tensor, decay: float, sign: float) -> Tensor:
    """The gradient that an optimizer goes down, its weight decay included."""
    value = distributed.local(p)
    if p.grad is None:
        return torch.zeros_like(_wide(value))
    gradient = _wide(dense_gradient(p)).reshape(value.shape)
    gradient = gradient if sign > 0 else -gradient
    return gradient.add(value, alpha=decay) if decay else gradient


def _wide(tensor: Tensor) -> Tensor:
    """Half-precision tensors in 32 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _drop_unless_good(
    updates: list[Tensor],
    gradients: list[Tensor],
    backend: AbstractBackend[Tensor],
    good: Tensor | None,
) -> None:
    """Replace pairs of which one is not finite by zeros, or all, so that no history is spoiled."""
    finite = (backend.norms(updates) + backend.norms(gradients)).isfinite()
    if good is not None:
        finite = finite & good.to(finite.device)
    if finite.device.type == "cpu" and bool(finite.all()):
        return
    for tensors in (updates, gradients):
        for k, tensor in enumerate(tensors):
            tensors[k] = torch.where(finite[k], tensor, torch.zeros_like(tensor))
