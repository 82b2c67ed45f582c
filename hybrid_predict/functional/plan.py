"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import chain, compress
from typing import Any, NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor, make_predictor
from hybrid_predict.rules.budget import as_matrix, budget, flatten_operations, largest_block, weak
from hybrid_predict.rules.gate import Part, judged
from hybrid_predict.updates import SpectralUpdate, WhitenedUpdate, make_update
from hybrid_predict.updates.whitened import covariance_operations


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
    block: int | None = None
    """Largest number of rows that corrected updates treat together; None for all."""

    @property
    def longest(self) -> int:
        """Longest side that is whitened."""
        if not isinstance(self.update, WhitenedUpdate):
            return 0
        own = self.update.longest
        return own if self.block is None else min(own, self.block // 2)

    def operations(self, block: int | None) -> int:
        """Return the operations that correcting adds to a full step, by the block of rows."""
        if self.update is None:
            return 0
        shapes, longest = list(self.shapes.values()), self._replace(block=block).longest
        products = flatten_operations(shapes, self.update.iterations, block, gram=False)
        return products + covariance_operations(shapes, longest)

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
    def block(self) -> int | None:
        """Largest number of rows that are treated together, which all groups share."""
        return next((plan.block for plan in self.groups.values()), None)

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

    def operations(self, block: int | None) -> int:
        """Return the operations that correcting adds to a full step, by the block of rows."""
        return sum(plan.operations(block) for plan in self.groups.values())


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
    block, _ = largest_block(plans.operations, budget(step_operations, config.max_overhead))
    return plans._replace(groups=_limited(groups, block))


def _limited(groups: Mapping[str, Plan], block: int | None) -> dict[str, Plan]:
    """The groups with corrections in blocks of so many rows.

    If this leaves them weak, predicted steps that need skill are not made; and if no others are
    left, nothing is corrected either.
    """
    limited = {key: plan._replace(block=block) for key, plan in groups.items()}
    corrected = [plan.shapes.values() for plan in groups.values() if plan.update]
    if not weak(list(chain(*corrected)), block):
        return limited
    gated = {key for key, plan in groups.items() if plan.predictor and plan.predictor.gated}
    if gated and not any(p.predictor for key, p in groups.items() if key not in gated):
        return {}
    limited |= {key: limited[key]._replace(predictor=None) for key in gated}
    return {key: plan for key, plan in limited.items() if plan.update or plan.predictor}


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
    for argument, methods, known in (
        ("updates", updates, (SpectralUpdate, WhitenedUpdate)),
        ("predictors", predictors, (FittedPredictor, MomentumPredictor)),
    ):
        for method in methods.values():
            if type(method) not in known:
                expected = f"{known[0].__name__} or {known[1].__name__} in the functional form"
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
