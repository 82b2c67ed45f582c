"""One forecast out of several predictors: each kind's predictor, its history and its horizons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.backends import AbstractBackend, ShardedBackend, TorchBackend, wide
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError
from hybrid_predict.gradients import dense_gradient
from hybrid_predict.horizons import make_horizon
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import ParameterMapper, WeightDelta
from hybrid_predict.predictors import AbstractPredictor, PredictorState, make_predictor
from hybrid_predict.predictors.contract import check_delta

logger = distributed.rank_zero_logger(__name__)


@dataclass(frozen=True)
class _Group:
    """Parameters of one kind and one optimizer.

    Args:
        predictor: Theirs.
        owner: Number of the optimizer.
        members: Their places among the forecast parameters.
        positions: Their places among the mapper's.
        parameters: They themselves.
        backend: Kernels for their arrays.
        state: Their history.
        lengths: Of the last updates that may stand, shape (K,).
    """

    predictor: AbstractPredictor
    owner: int
    members: list[int]
    positions: list[int]
    parameters: list[Tensor]
    backend: AbstractBackend[Tensor]
    state: PredictorState
    lengths: Tensor


class Forecaster:
    """Forecasts the parameters of all kinds that have a predictor.

    Args:
        mapper: The model's parameters.
        optimizer: Who updates them.
        config: Which predictor serves which kind, and the horizon rule.

    Attributes:
        positions: Of the forecast parameters among the mapper's.
        compares: Whether the speedup depends on how forecasts differ from the updates they replace.
        growing: Of those that are left to an optimizer whose updates grow with the weights, as a
            forecast in their place would grow with itself.
    """

    def __init__(
        self, mapper: ParameterMapper, optimizer: OptimizerWrapper, config: HybridConfig
    ) -> None:
        self._mapper, self._optimizer = mapper, optimizer
        self._policy, self._long = config.policy, config.long_horizon
        self._history = config.history_dtype
        self._auto = config.speedup == "auto"
        self._rule = make_horizon(config.horizon)
        predictors = {kind: make_predictor(p) for kind, p in config.predictors.items()}
        owners = optimizer.owners()
        replaced = [kind for kind, predictor in predictors.items() if predictor.replaces_update]
        self.growing = [
            k
            for k in mapper.select(replaced)
            if optimizer.is_relative(owners[id(mapper.parameters[k])])
        ]
        self.positions = [k for k in mapper.select(predictors) if k not in self.growing]
        self.kinds = [mapper.kinds[k] for k in self.positions]
        self._state = self._rule.init(self.kinds)
        self._parameters = [mapper.parameters[k] for k in self.positions]
        columns = [(k, owners[id(p)]) for k, p in zip(self.kinds, self._parameters, strict=True)]
        parts = [(kind, k) for kind in predictors for k in range(len(optimizer.optimizers))]
        self._groups = [
            self._group(predictors[part[0]], part[1], members)
            for part in parts
            if (members := [i for i, own in enumerate(columns) if own == part])
        ]
        replacing = any(group.predictor.replaces_update for group in self._groups)
        self.compares = self._auto and replacing

    def _group(self, predictor: AbstractPredictor, owner: int, members: list[int]) -> _Group:
        positions = [self.positions[i] for i in members]
        parameters = [self._parameters[i] for i in members]
        sharded = any(distributed.is_sharded(p) for p in parameters)
        history = self._history
        backend = ShardedBackend(parameters, history) if sharded else TorchBackend(history)
        names = [self._mapper.names[k] for k in positions]
        state = predictor.init(names, self._mapper.values(positions), backend)
        lengths = torch.zeros(len(members), dtype=torch.float32, device=parameters[0].device)
        return _Group(predictor, owner, members, positions, parameters, backend, state, lengths)

    @property
    def follows_displacements(self) -> bool:
        """Whether a predictor has to be shown displacements."""
        return not all(group.predictor.replaces_update for group in self._groups)

    @property
    def mean_horizon(self) -> float:
        """Mean horizon of the forecast parameters; 0 without any."""
        horizons = self.horizons
        return math.fsum(horizons) / max(1, len(horizons))

    @property
    def supported_horizon(self) -> float:
        """Mean horizon by element of what replaces updates, or of everything if nothing does.

        It is asked for by ``speedup="auto"`` alone, and 0 otherwise.
        """
        if not self._auto:
            return 0.0
        horizons = self.horizons
        chosen = [g for g in self._groups if g.predictor.replaces_update] or self._groups
        pairs = [(horizons[i], p.numel()) for g in chosen
                 for i, p in zip(g.members, g.parameters, strict=True)]  # fmt: skip
        return math.fsum(h * n for h, n in pairs) / max(1, sum(n for _, n in pairs))

    @property
    def names(self) -> list[str]:
        """Of the forecast parameters."""
        return [self._mapper.names[k] for k in self.positions]

    @property
    def period(self) -> int:
        """Full steps between two costly computations, the fewest of all predictors."""
        return min((group.predictor.period for group in self._groups), default=1)

    def multipliers(self) -> dict[str, float]:
        """Lengths of the next forecasts over those of the last updates that they replace."""
        found: dict[str, float] = {}
        for group in self._groups:
            if group.predictor.replaces_update:
                delta = group.predictor.forecast(
                    group.state, [self.horizons[i] for i in group.members]
                )
                ratios = group.backend.norms(delta.directions) / group.lengths
                ratios = ratios.nan_to_num(0.0, 0.0, 0.0).cpu() * torch.tensor(delta.factors)
                found.update(zip(delta.names, ratios.tolist(), strict=True))
        return found

    def tell_growing(self, ledger: SavingsLedger, step: int) -> None:
        """Tell the user, if parameters are left to an optimizer whose updates grow with them."""
        reason = "matrices are left to an optimizer whose updates grow with the weights"
        if self.growing and ledger.record(step, reason):
            remedy = "Use AdamW or SGD to have them forecast."
            logger.warning("%s%s. %s", reason[0].upper(), reason[1:], remedy)

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
        for group in self._groups:
            delta = group.predictor.forecast(
                group.state, [horizons[i] for i in group.members], closed_loop=closed_loop
            )
            like = self._mapper.values(group.positions)
            check_delta(group.predictor, delta, group.state.names, like)
            columns = zip(delta.names, delta.directions, delta.factors, strict=True)
            parts.update(zip(group.members, columns, strict=True))
        ordered = [parts[i] for i in range(len(self.positions))]
        names, directions, factors = zip(*ordered, strict=True) if ordered else ((), (), ())
        return WeightDelta(tuple(names), tuple(directions), tuple(factors))

    def observe(self, displacement: Sequence[Tensor], applied: WeightDelta | None) -> None:
        """Show every predictor its part of a displacement, which may be overwritten.

        Those that replace the update have seen it in :meth:`observe_update` already.
        """
        for group in self._groups:
            if not group.predictor.replaces_update:
                own = [displacement[i] for i in group.members]
                part = _part(applied, group.members)
                group.predictor.observe(group.state, own, part, group.backend)

    def observe_update(
        self,
        index: int,
        applied: WeightDelta | None,
        good: Tensor | None = None,
        limit: float = math.inf,
    ) -> list[Tensor]:
        """Show an optimizer's updates to the predictors that replace them, and take those back.

        A horizon h below 1 leaves the share 1 - h of the update, so that at 0 the optimizer goes
        on, to rounding, as ever.

        Args:
            index: Which optimizer has just updated.
            applied: The forecast before it, None without one.
            good: Whether the updates may stand, 0-dim; None if that is not known yet. No history
                keeps those that are undone.
            limit: Norm of a group's gradients above which they are not kept either.

        Returns:
            If the speedup depends on them, what :func:`_overlap` gives, per group of parameters.
        """
        overlaps, horizons = [], self.horizons
        for group in self._groups:
            if not group.predictor.replaces_update or group.owner != index:
                continue
            part = _part(applied, group.members)
            rules = self._optimizer.descent(index)
            points = self._mapper.points(group.positions, part)
            values = self._mapper.values(group.positions)
            columns = zip(group.parameters, points, strict=True)
            gradients = [_descended(p, point, *rules[id(p)][1:]) for p, point in columns]
            # Whichever is not needed any more holds the updates until they are measured: the
            # points or, negated, the parameters.
            pair = (points, values) if part is None else (values, points)
            updates = group.backend.difference(*pair)
            found = [d if g is None else g for g, d in zip(gradients, updates, strict=True)]
            norms = group.backend.norms([*updates, *found]).view(2, -1)
            if part is not None:
                if self.compares:
                    reached = [k for k, g in enumerate(gradients) if g is not None]
                    overlaps.append(_overlap(updates, part.directions, reached))
                shrink = [rules[id(p)][0] for p in group.parameters]
                kept = [max(0.0, 1.0 - horizons[i]) for i in group.members]
                self._mapper.take_back(group.positions, points, shrink, kept)
            del points, pair, updates, found
            seen, lengths = _unspoiled(gradients, norms, group, good, limit)
            group.lengths.copy_(lengths)
            group.predictor.observe(group.state, seen, None, group.backend, lengths)
        return overlaps

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
        return {
            "horizons": list(self._state),
            "histories": [
                distributed.collected(
                    {**group.state.state_dict(), "lengths": group.lengths}, group.parameters
                )
                for group in self._groups
            ],
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
        for group, history in zip(self._groups, histories, strict=True):
            if history is None:
                raise CheckpointError(
                    "state: expected what rank 0 got from state_dict(), got another rank's. Where "
                    "parameters are sharded, save that of rank 0 and load it on every rank."
                )
            own = distributed.spread(history, group.parameters)
            group.state.load_state_dict(own, group.backend)
            group.lengths.copy_(own["lengths"])
        self._state = [float(x) for x in saved["horizons"]]
        if not all(math.isfinite(h) and h >= 0 for h in self.horizons):
            raise CheckpointError(
                f"state: expected finite horizons, at least 0, got {self.horizons[:3]}. "
                "Resume from another checkpoint."
            )


def _part(delta: WeightDelta | None, members: Sequence[int]) -> WeightDelta | None:
    """The forecast of some of the parameters."""
    if delta is None:
        return None
    return WeightDelta(
        tuple(delta.names[i] for i in members),
        tuple(delta.directions[i] for i in members),
        tuple(delta.factors[i] for i in members),
    )


def _overlap(
    updates: Sequence[Tensor], directions: Sequence[Tensor], reached: Sequence[int]
) -> Tensor:
    """Squared lengths of updates and directions and their product, shape (3,), on this rank.

    Directions of one optimizer are in proportion to its updates, so its matrices count by how far
    it moves them.

    Args:
        updates: One per parameter, all of them negated or none.
        directions: As many.
        reached: Places of those that a gradient has reached.
    """
    backend = TorchBackend()
    pairs = [updates[k] for k in reached], [directions[k] for k in reached]
    squares = [backend.norms(x).float().square().sum() for x in pairs]
    return torch.stack([*squares, backend.dots(*pairs).float().sum()])


def _descended(p: Tensor, point: Tensor, decay: float, sign: float) -> Tensor | None:
    """The gradient that an optimizer goes down from a point, its weight decay included."""
    if p.grad is None:
        return None
    gradient = dense_gradient(p).reshape(point.shape)
    gradient = gradient if sign > 0 else -gradient
    return wide(gradient).add(point, alpha=decay) if decay else gradient


def _unspoiled(
    gradients: Sequence[Tensor | None],
    norms: Tensor,
    group: _Group,
    good: Tensor | None,
    limit: float,
) -> tuple[list[Tensor], Tensor]:
    """Gradients and lengths of updates that a history may see.

    Where there is no gradient, or one that must leave no trace, the history sees itself: its
    average, which stays as it is, and the length of the last update that could stand.

    Args:
        gradients: K of them, None where no gradient has reached the parameter.
        norms: Those of updates and gradients, shape (2, K), the same on all ranks.
        group: Whose they are.
        good: Whether the step may stand, 0-dim; None if that is not known yet.
        limit: Norm of all K gradients above which it may not.

    Returns:
        K gradients, and lengths of shape (K,).
    """
    finite = norms.sum(0).isfinite()
    if good is not None:
        finite = finite & good.to(finite.device)
    elif math.isfinite(limit):
        finite = finite & (torch.linalg.vector_norm(norms[1]) <= limit)
    sees_itself = [g is None for g in gradients]
    # Ranks agree: norms are of whole tensors, and gradients reach sharded ones on all ranks alike.
    if finite.device.type == "cpu" and bool(finite.all()) and not any(sees_itself):
        return [g for g in gradients if g is not None], norms[0]
    seen = [
        m if g is None else torch.where(ok, g, wide(m))
        for g, m, ok in zip(gradients, group.state.average, finite, strict=True)
    ]
    alive = finite & ~torch.tensor(sees_itself, device=finite.device)
    return seen, torch.where(alive, norms[0], group.lengths)
