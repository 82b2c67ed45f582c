"""One forecast out of several predictors: each kind's predictor, its history and its horizons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hybrid_predict.backends import TorchBackend
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError
from hybrid_predict.horizons import make_horizon
from hybrid_predict.parameters import ParameterMapper, WeightDelta
from hybrid_predict.predictors import make_predictor
from hybrid_predict.predictors.contract import check_delta


class Forecaster:
    """Forecasts the parameters of all kinds that have a predictor.

    Args:
        mapper: The model's parameters.
        config: Which predictor serves which kind, and the horizon rule.
    """

    def __init__(self, mapper: ParameterMapper, config: HybridConfig) -> None:
        self._backend = TorchBackend()
        self._mapper = mapper
        self._rule = make_horizon(config.horizon)
        predictors = {kind: make_predictor(p) for kind, p in config.predictors.items()}
        self.positions = mapper.select(predictors)
        self.kinds = [mapper.kinds[k] for k in self.positions]
        self._state = self._rule.init(self.kinds)
        self._groups = []
        for kind, predictor in predictors.items():
            members = [i for i, own in enumerate(self.kinds) if own == kind]
            if not members:
                continue
            names = [mapper.names[self.positions[i]] for i in members]
            like = mapper.values([self.positions[i] for i in members])
            self._groups.append((predictor, predictor.init(names, like, self._backend), members))

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
        for predictor, state, members in self._groups:
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
        """Show every predictor its part of a displacement, which may be overwritten."""
        for predictor, state, members in self._groups:
            part = None
            if applied is not None:
                part = WeightDelta(
                    state.names,
                    tuple(applied.directions[i] for i in members),
                    tuple(applied.factors[i] for i in members),
                )
            predictor.observe(state, [displacement[i] for i in members], part, self._backend)

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
        """Histories and horizons."""
        return {
            "horizons": list(self._state),
            "histories": [state.state_dict() for _, state, _ in self._groups],
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
        for (_, state, _), history in zip(self._groups, histories, strict=True):
            state.load_state_dict(history, self._backend)
        self._state = [float(x) for x in saved["horizons"]]
        if not all(math.isfinite(h) and h >= 0 for h in self.horizons):
            raise CheckpointError(
                f"state: expected finite horizons, at least 0, got {self.horizons[:3]}. "
                "Resume from another checkpoint."
            )
