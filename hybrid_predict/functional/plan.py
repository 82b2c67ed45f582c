"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor, make_predictor
from hybrid_predict.rules.budget import as_matrix, budget, flatten_operations, largest_block, weak
from hybrid_predict.rules.polynomials import ROOT_PRODUCTS
from hybrid_predict.updates import SpectralUpdate, WhitenedUpdate, make_update
from hybrid_predict.updates.whitened import COVARIANCE_DECAY, ROOTS_EVERY, SEEN_EVERY


@final
class Plan(NamedTuple):
    """How the arrays of one group are treated.

    Args:
        kind: Their kind.
        names: Their names, sorted, as a jitted function sees the names of a dict.
        update: Their corrected update, or None.
        predictor: Their predictor, or None.
        block: Largest number of rows that corrected updates treat together; None for all.
    """

    kind: str
    names: tuple[str, ...]
    update: SpectralUpdate | None
    predictor: FittedPredictor | MomentumPredictor | None
    block: int | None = None

    @property
    def longest(self) -> int:
        """Longest side that is whitened."""
        if not isinstance(self.update, WhitenedUpdate):
            return 0
        own = self.update.longest
        return own if self.block is None else min(own, self.block // 2)


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


def count_trained(weights: Mapping[str, Any], config: HybridConfig) -> int:
    """Return the number of weights outside embeddings, of which predicted steps move a part."""
    counted = (n for n, kind in kinds(weights, config).items() if kind != "embedding")
    return sum(math.prod(weights[name].shape) for name in counted)


def plans(
    weights: Mapping[str, Any],
    config: HybridConfig,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> dict[str, Plan]:
    """Return the groups by their keys; none if nothing is corrected or predicted.

    Args:
        weights: Arrays by name.
        config: What is corrected and predicted.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        step_operations: Operations of forward and backward; None does not limit corrections.

    Raises:
        ConfigError: If a setting has no meaning for arrays, or ``step_operations`` is no number.
    """
    _check_settings(config, step_operations)
    updates = {kind: _update(choice) for kind, choice in config.updates.items()}
    predictors = {kind: _predictor(choice) for kind, choice in config.predictors.items()}
    _check_history(config, [*updates.values(), *predictors.values()])
    if config.compression == 1:
        predictors = {}
    if not config.enabled or not (updates or predictors):
        return {}
    members: dict[tuple[str, bool], list[str]] = {}
    for name, kind in kinds(weights, config).items():
        corrected = kind in updates and updates[kind].share > 0 and weights[name].ndim > 1
        if (corrected or kind in predictors) and 0 not in weights[name].shape:
            members.setdefault((kind, corrected), []).append(name)
    groups = {
        kind if corrected else f"{kind}, not corrected": Plan(
            kind, tuple(sorted(names)), updates[kind] if corrected else None, predictors.get(kind)
        )
        for (kind, corrected), names in sorted(members.items())
    }
    if step_operations is None:
        return groups
    shapes = corrected_shapes(groups, weights, outputs_last)
    return _limited(groups, shapes, config.max_overhead, step_operations)


def matrix_shape(array: Any, outputs_last: bool) -> tuple[int, int]:
    """Return the rows (outputs) and columns of an array that is read as a matrix."""
    shape = tuple(array.shape)
    return as_matrix((*shape[-1:], *shape[:-1]) if outputs_last else shape)


def corrected_shapes(
    groups: Mapping[str, Plan], weights: Mapping[str, Any], outputs_last: bool
) -> dict[str, list[tuple[int, int]]]:
    """Return rows and columns of the corrected matrices by group."""
    return {
        key: [matrix_shape(weights[name], outputs_last) for name in plan.names]
        for key, plan in groups.items()
        if plan.update is not None
    }


def operations(
    groups: Mapping[str, Plan], shapes: Mapping[str, list[tuple[int, int]]], block: int | None
) -> int:
    """Return the operations that correcting adds to a full step, by the block of rows."""
    total = 0.0
    for key, matrices in shapes.items():
        plan = groups[key]._replace(block=block)
        assert plan.update is not None
        total += flatten_operations(matrices, plan.update.iterations, block, gram=False)
        for sides in matrices:
            for side in (each for each in sides if each <= plan.longest):
                total += 2 * side * math.prod(sides) * (1 + 1 / SEEN_EVERY)
                total += 2 * ROOT_PRODUCTS * side**3 / ROOTS_EVERY
    return round(total)


def chosen_block(groups: Mapping[str, Plan]) -> int | None:
    """Return the largest number of rows that are treated together, which all groups share."""
    return next((plan.block for plan in groups.values()), None)


def _limited(
    groups: Mapping[str, Plan],
    shapes: Mapping[str, list[tuple[int, int]]],
    max_overhead: float,
    step_operations: float,
) -> dict[str, Plan]:
    """The groups with corrections within ``max_overhead``.

    If this leaves them weak, predicted steps that need skill are not made; and if no others are
    left, nothing is corrected either.
    """
    allowed = budget(step_operations, max_overhead)
    block, _ = largest_block(partial(operations, groups, shapes), allowed)
    limited = {key: plan._replace(block=block) for key, plan in groups.items()}
    if not weak([shape for matrices in shapes.values() for shape in matrices], block):
        return limited
    gated = [plan.predictor.gated for plan in groups.values() if plan.predictor]
    if gated and all(gated):
        return {}
    kept = {
        key: plan._replace(predictor=None) if plan.predictor and plan.predictor.gated else plan
        for key, plan in limited.items()
    }
    return {key: plan for key, plan in kept.items() if plan.update or plan.predictor}


def _check_settings(config: HybridConfig, step_operations: float | None) -> None:
    number = isinstance(step_operations, (int, float)) and 0.0 < step_operations < math.inf
    if step_operations is not None and not number:
        raise ConfigError("step_operations", "a finite number above 0, or None", step_operations)
    if config.shadow:
        expected, remedy = "False in the functional form", "Use HybridEngine to shadow a run."
        raise ConfigError("shadow", expected, True, remedy)
    if not config.watch_loss:
        expected, remedy = "True in the functional form", "Call verify() without a loss."
        raise ConfigError("watch_loss", expected, False, remedy)


def _check_history(config: HybridConfig, methods: list[Any]) -> None:
    decays = [method.decay for method in methods]
    if any(isinstance(method, WhitenedUpdate) for method in methods):
        decays.append(COVARIANCE_DECAY**SEEN_EVERY)
    if config.history_dtype == "bfloat16" and max(decays, default=0.0) > 0.95:
        expected = "'float32' for averages with a decay above 0.95"
        remedy = "Lower the decay, or store averages in 32 bits."
        raise ConfigError("history_dtype", expected, config.history_dtype, remedy)


def _update(choice: Any) -> SpectralUpdate:
    update = make_update(choice)
    if type(update) in (SpectralUpdate, WhitenedUpdate):
        return update  # type: ignore[return-value]
    expected, remedy = "'spectral' or 'whitened' in the functional form", "Use HybridEngine."
    raise ConfigError("updates", expected, type(update).__name__, remedy)


def _predictor(choice: Any) -> FittedPredictor | MomentumPredictor:
    predictor = make_predictor(choice)
    if isinstance(predictor, (FittedPredictor, MomentumPredictor)):
        return predictor
    expected, remedy = "'fitted' or 'momentum' in the functional form", "Use HybridEngine."
    raise ConfigError("predictors", expected, type(predictor).__name__, remedy)


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
