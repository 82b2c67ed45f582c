"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import (
    AbstractPredictor,
    FittedPredictor,
    MomentumPredictor,
    make_predictor,
)
from hybrid_predict.forecast.predictors.fitted import START
from hybrid_predict.rules.budget import budget, largest_block, weak
from hybrid_predict.tensors.arrays import ArrayBackend, namespace
from hybrid_predict.updates import AbstractUpdate, make_update


@final
class Rule(NamedTuple):
    """How a group is forecast.

    Args:
        decays: Decays of its drifts.
        last: Whether the last displacement is a direction too.
        coefficient: Of the first drift, before any window is read.
        fitted: The predictor that fits coefficients; None keeps them.
        gated: Whether predicted steps need skill.
    """

    decays: tuple[float, ...]
    last: bool
    coefficient: float
    fitted: FittedPredictor | None
    gated: bool


@final
class Plan(NamedTuple):
    """What happens to the arrays of one group.

    Args:
        kind: Their kind.
        names: Their names.
        update: How their updates are corrected, None if they are not.
        rule: How they are forecast, None if they are not.
        block: Largest number of rows that corrected updates treat together, None for all.
    """

    kind: str
    names: tuple[str, ...]
    update: AbstractUpdate | None
    rule: Rule | None
    block: int | None = None


def kinds(weights: Mapping[str, Any], config: HybridConfig) -> dict[str, str]:
    """The kind of every array.

    Arrays show neither modules nor a graph. What has fewer than two dimensions above size 1 is a
    vector; other arrays are hidden matrices unless a pattern of ``config.kinds`` says otherwise.

    Args:
        weights: Arrays by name.
        config: Whose ``kinds`` count; the first pattern that matches wins.

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
    found = {name: "hidden" if name in matrices else "vector" for name in weights}
    for name in weights:
        matching = (k for pattern, k in config.kinds.items() if fnmatchcase(name, pattern))
        found[name] = next(matching, found[name])
    return found


def count_trained(weights: Mapping[str, Any], config: HybridConfig) -> int:
    """Number of weights outside embeddings, of which predicted steps have to move a part."""
    counted = (n for n, kind in kinds(weights, config).items() if kind != "embedding")
    return sum(math.prod(weights[name].shape) for name in counted)


def plans(
    weights: Mapping[str, Any],
    config: HybridConfig,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> dict[str, Plan]:
    """The groups by their keys; none where nothing is corrected or predicted.

    Args:
        weights: Arrays by name.
        config: What is corrected and predicted.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        step_operations: Operations of forward and backward; None if corrections are not limited.

    Raises:
        ConfigError: If a setting has no meaning for arrays, or ``step_operations`` is no number.
    """
    number = isinstance(step_operations, (int, float)) and 0.0 < step_operations < math.inf
    if step_operations is not None and not number:
        raise ConfigError("step_operations", "a finite number above 0, or None", step_operations)
    if config.shadow:
        expected, remedy = "False in the functional form", "Use HybridEngine to shadow a run."
        raise ConfigError("shadow", expected, True, remedy)
    if not config.watch_loss:
        expected, remedy = "True in the functional form", "Call verify() without a loss."
        raise ConfigError("watch_loss", expected, False, remedy)
    if not config.enabled:
        return {}
    updates = {kind: make_update(u) for kind, u in config.updates.items()}
    rules = {kind: _rule(make_predictor(p)) for kind, p in config.predictors.items()}
    if config.compression == 1:
        rules = {}
    members: dict[tuple[str, bool], list[str]] = {}
    for name, kind in kinds(weights, config).items() if updates or rules else ():
        update = updates.get(kind)
        corrected = update is not None and update.share > 0 and weights[name].ndim > 1
        if (corrected or kind in rules) and 0 not in weights[name].shape:
            members.setdefault((kind, corrected), []).append(name)
    # By name: a jitted function sees the names of a dict in this order.
    found = {
        kind if corrected else f"{kind}, not corrected": Plan(
            kind, tuple(sorted(names)), updates[kind] if corrected else None, rules.get(kind)
        )
        for (kind, corrected), names in sorted(members.items())
    }
    if step_operations is None:
        return found
    likes = corrected_arrays(found, weights, outputs_last)
    return _limited(found, likes, config, step_operations)


def corrected_arrays(
    found: Mapping[str, Plan], weights: Mapping[str, Any], outputs_last: bool
) -> dict[str, list[Any]]:
    """The arrays of the groups that are corrected, their dimension of outputs first."""
    return {
        key: turned([weights[name] for name in plan.names], outputs_last)
        for key, plan in found.items()
        if plan.update is not None
    }


def operations(
    found: Mapping[str, Plan],
    likes: Mapping[str, list[Any]],
    config: HybridConfig,
    block: int | None,
) -> int:
    """Operations that correcting these arrays adds to a full step, by the block."""
    backend = ArrayBackend(config.history_dtype)
    each = ((found[key].update, like) for key, like in likes.items())
    return sum(update.operations(like, backend, block) for update, like in each if update)


def chosen_block(found: Mapping[str, Plan]) -> int | None:
    """The largest number of rows that are treated together, which all groups share."""
    return next((plan.block for plan in found.values()), None)


def _limited(
    found: Mapping[str, Plan],
    likes: Mapping[str, list[Any]],
    config: HybridConfig,
    step_operations: float,
) -> dict[str, Plan]:
    """The groups with corrections within ``max_overhead``, as the engine limits them.

    Where this leaves them weak, what needs skill is not predicted; and if nothing else is
    predicted, nothing is corrected either.
    """
    allowed = budget(step_operations, config.max_overhead)
    block, _ = largest_block(partial(operations, found, likes, config), allowed)
    limited = {key: plan._replace(block=block) for key, plan in found.items()}
    if not weak([x.shape for like in likes.values() for x in like], block):
        return limited
    gated = [plan.rule.gated for plan in found.values() if plan.rule is not None]
    if gated and all(gated):
        return {}
    kept = {
        key: plan._replace(rule=None) if plan.rule and plan.rule.gated else plan
        for key, plan in limited.items()
    }
    return {key: plan for key, plan in kept.items() if plan.update or plan.rule}


def turned(arrays: Sequence[Any], outputs_last: bool, *, back: bool = False) -> list[Any]:
    """Arrays with their dimension of outputs first, or back as they were."""
    if not outputs_last:
        return list(arrays)
    found = []
    for x in arrays:
        axes = list(range(x.ndim))
        order = [*axes[1:], 0] if back else [*axes[-1:], *axes[:-1]]
        found.append(namespace(x).permute_dims(x, tuple(order)))
    return found


def _rule(predictor: AbstractPredictor) -> Rule:
    if isinstance(predictor, MomentumPredictor):
        own = predictor.coefficient
        return Rule((predictor.decay,), False, own, None, predictor.gated)
    if isinstance(predictor, FittedPredictor):
        return Rule(predictor.decays, predictor.last, START, predictor, predictor.gated)
    expected, remedy = "'fitted' or 'momentum' in the functional form", "Use HybridEngine."
    raise ConfigError("predictors", expected, type(predictor).__name__, remedy)


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
