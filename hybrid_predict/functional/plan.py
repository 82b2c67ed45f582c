"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import compress
from typing import Any, NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor, make_predictor
from hybrid_predict.rules.budget import (
    as_matrix,
    budget,
    direction_operations,
    shortest_period,
)
from hybrid_predict.rules.gate import Part, judged
from hybrid_predict.rules.owners import turns
from hybrid_predict.updates import SpectralUpdate, make_update
from hybrid_predict.updates.spectral import seen_every


@final
class Plan(NamedTuple):
    """How the arrays of one group are treated."""

    kind: str
    shapes: dict[str, tuple[int, int]]
    """Rows (outputs) and columns of each, read as a matrix, by name; names are sorted, as a jitted
    function sees those of a dict."""
    update: SpectralUpdate | None
    predictor: FittedPredictor | MomentumPredictor | None
    decides: bool
    """Whether predicted steps are made for it; others only move along, while forecasts last."""
    period: int | None = 1
    """Full steps from one correction of an array to the next; None if nothing is corrected."""
    turns: Sequence[int] = ()
    """In which full step of a period each array is corrected; empty if in all."""

    @property
    def longest(self) -> int:
        """Longest side that has a covariance."""
        return self.update.longest if self.update is not None else -1

    def work(self, period: int) -> list[int]:
        """Return the operations of the direction of each array, by the period."""
        if self.update is None:
            return [0] * len(self.shapes)
        longest, every = self.longest, seen_every(period)
        shapes = self.shapes.values()
        return [direction_operations([x], longest, every, products=False) for x in shapes]

    @property
    def size(self) -> Any:
        """Number of weights, a float, as JAX's integers have 32 bits."""
        return float(sum(map(math.prod, self.shapes.values())))

    def part(self, ready: Any) -> Part:
        """Return a predicted group as the gate sees it."""
        assert self.predictor is not None
        table = self.kind == "embedding"
        return Part(self.size, self.predictor.gated, ready, table, self.decides)


@final
class Plans(NamedTuple):
    """The groups by their keys; none if nothing is corrected or predicted."""

    groups: dict[str, Plan]
    trained: float
    """Number of weights outside embeddings, of which predicted steps move a part; a float, as
    JAX's integers have 32 bits."""

    @property
    def period(self) -> int | None:
        """Full steps from one correction of an array to the next, which all groups share."""
        return next((plan.period for plan in self.groups.values()), 1)

    @property
    def corrects(self) -> bool:
        """Whether any array is corrected."""
        return any(plan.update is not None for plan in self.groups.values())

    @property
    def predicted(self) -> list[Plan]:
        """The groups that have a predictor."""
        return [plan for plan in self.groups.values() if plan.predictor]

    @property
    def gated(self) -> bool:
        """Whether predicted steps are possible, and need skill."""
        parts = [plan.part(True) for plan in self.predicted]
        gates = [part.gated for part in compress(parts, judged(parts, self.trained))]
        return bool(gates) and all(gates)

    def operations(self, period: int) -> float:
        """Return the operations that correcting adds to an average full step, by the period."""
        return sum(sum(plan.work(period)) for plan in self.groups.values()) / period


def kinds(weights: Mapping[str, Any], config: HybridConfig) -> dict[str, str]:
    """Return the kind of every array.

    Arrays show neither modules nor a graph. An array with fewer than two dimensions above size 1 is
    a vector; others are hidden matrices unless a pattern of ``config.kinds`` says otherwise.

    Args:
        weights: Arrays by name.
        config: Its ``kinds`` count; the first pattern that matches wins.

    Raises:
        ConfigError: If there are several matrices and no pattern, or a pattern matches nothing.
    """
    matrices = [n for n, x in weights.items() if sum(size > 1 for size in x.shape) > 1]
    for pattern in config.kinds:
        if not any(fnmatchcase(name, pattern) for name in weights):
            expected, remedy = "patterns that match a name", f"Names are {_some(weights)}."
            raise ConfigError("kinds", expected, pattern, remedy)
    if len(matrices) > 1 and not config.kinds:
        expected = "patterns that name the head and the embeddings, which arrays do not show"
        remedy = f"Matrices are {_some(matrices)}: write kinds={{{matrices[-1]!r}: 'head'}}."
        raise ConfigError("kinds", expected, {}, remedy)

    def kind(name: str) -> str:
        matching = (k for pattern, k in config.kinds.items() if fnmatchcase(name, pattern))
        return next(matching, "hidden" if name in matrices else "vector")

    return {name: kind(name) for name in weights}


def make_plans(
    weights: Mapping[str, Any],
    config: HybridConfig,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> Plans:
    """Return which arrays are corrected and predicted, with corrections within their budget."""
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    updates, predictors = _methods(config, step_operations)
    if not (updates or predictors):
        return Plans({}, 0.0)
    found = kinds(weights, config)
    members: dict[tuple[str, bool], dict[str, tuple[int, int]]] = {}
    for name, kind in sorted(found.items()):
        shape = tuple(weights[name].shape)
        corrected = kind in updates and updates[kind].share > 0 and len(shape) > 1
        if (corrected or kind in predictors) and 0 not in shape:
            shape = (*shape[-1:], *shape[:-1]) if outputs_last else shape
            members.setdefault((kind, corrected), {})[name] = as_matrix(shape)
    groups = {
        kind if corrected else f"{kind}, not corrected": Plan(
            kind,
            shapes,
            updates[kind] if corrected else None,
            predictors.get(kind),
            config.paced or kind in config.always_predicted,
        )
        for (kind, corrected), shapes in sorted(members.items())
    }
    trained = [weights[name].shape for name, kind in found.items() if kind != "embedding"]
    plans = Plans(groups, float(sum(map(math.prod, trained))))
    if step_operations is None:
        return plans
    period = shortest_period(plans.operations, budget(step_operations, config.max_overhead))
    return plans._replace(groups=_limited(groups, period))


def _limited(groups: Mapping[str, Plan], period: int | None) -> dict[str, Plan]:
    """The groups with corrections in one of so many full steps.

    If there are none, predicted steps that need skill are not made either.
    """
    if period is not None:
        work = [(0, each) for plan in groups.values() for each in plan.work(period)]
        dealt = iter(turns(work, period))
        return {
            key: plan._replace(period=period, turns=[next(dealt) for _ in plan.shapes])
            for key, plan in groups.items()
        }
    free = {k: p for k, p in groups.items() if p.predictor and not p.predictor.gated}
    return {key: plan._replace(update=None, period=None) for key, plan in free.items()}


def _methods(
    config: HybridConfig, step_operations: float | None
) -> tuple[dict[str, SpectralUpdate], dict[str, FittedPredictor | MomentumPredictor]]:
    """The updates and predictors by kind, checked with the other settings."""
    number = isinstance(step_operations, (int, float)) and 0.0 < step_operations < math.inf
    if step_operations is not None and not number:
        raise ConfigError("step_operations", "a finite number above 0, or None", step_operations)
    if config.shadow:
        remedy = "Use HybridEngine to shadow a run."
        raise ConfigError("shadow", "False in the functional form", True, remedy)
    if not config.watch_loss:
        remedy = "Call verify() without a loss."
        raise ConfigError("watch_loss", "True in the functional form", False, remedy)
    updates: dict[str, Any] = {kind: make_update(u) for kind, u in config.active_updates.items()}
    predictors: dict[str, Any] = {k: make_predictor(p) for k, p in config.active_predictors.items()}
    remedy = "Use HybridEngine for others."
    known: tuple[type, ...]
    for argument, methods, known in (
        ("updates", updates, (SpectralUpdate,)),
        ("predictors", predictors, (FittedPredictor, MomentumPredictor)),
    ):
        for method in methods.values():
            if type(method) not in known:
                names = " or ".join(each.__name__ for each in known)
                expected = f"{names} in the functional form"
                raise ConfigError(argument, expected, type(method).__name__, remedy)
    decays = [method.decay for method in (*updates.values(), *predictors.values())]
    if config.history_dtype == "bfloat16" and max(decays, default=0.0) > 0.95:
        expected = "'float32' for averages with a decay above 0.95"
        remedy = "Lower the decay, or store averages in 32 bits."
        raise ConfigError("history_dtype", expected, config.history_dtype, remedy)
    return updates, predictors


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
