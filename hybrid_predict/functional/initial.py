"""The state before the first full step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.gate import TOO_EXPENSIVE, TOO_FEW, too_few
from hybrid_predict.forecast.window import window_length
from hybrid_predict.functional import histories, places
from hybrid_predict.functional.plan import (
    Plan,
    chosen_block,
    corrected_arrays,
    count_trained,
    operations,
    plans,
    turned,
)
from hybrid_predict.functional.schedule import schedule
from hybrid_predict.functional.state import Baseline, Clock, Group, HybridState, Monitor, Skill
from hybrid_predict.ledger import percent
from hybrid_predict.rules.budget import budget, describe_block, describe_excess, tried
from hybrid_predict.tensors.arrays import ArrayBackend, beside, namespace, wide_dtype
from hybrid_predict.verify.descent import Evidence

logger = logging.getLogger(__name__)


def init(
    weights: Mapping[str, Any],
    config: HybridConfig,
    *,
    momentum: float = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> HybridState:
    r"""The state before the first full step.

    Args:
        weights: All trained arrays by name, floating-point, of one library.
        config: What is corrected and predicted; ``kinds`` names heads and embeddings.
        momentum: :math:`\beta_1` of the optimizer, in [0, 1): windows of displacements are longer
            for more.
        outputs_last: Whether matrices are of shape (inputs, outputs), as in most JAX libraries, in
            place of torch's (outputs, inputs).
        step_operations: Floating-point operations of the forward and backward of a full step, which
            ``config.max_overhead`` is a share of. None corrects in full, whatever it says.

    Returns:
        A pytree of arrays. Beside the weights it takes three times the memory of what is both
        corrected and predicted: averaged gradients, drift, and weights before predicted steps.

    Raises:
        ConfigError: If an argument has a value that cannot work.
        MissingExtraError: If array-api-compat is needed and not installed.
    """
    _check(config, momentum, outputs_last)
    xp = places.check_arrays("weights", weights)
    if places.computed_elsewhere(xp):
        xp, weights = np, places.to_numpy(weights)
    found = plans(weights, config, outputs_last, step_operations)
    _log_limits(found, weights, config)
    _warn_of_excess(found, corrected_arrays(found, weights, outputs_last), config, step_operations)
    like, backend = list(weights.values()), ArrayBackend(config.history_dtype)
    predicted = [plan for plan in found.values() if plan.rule is not None]
    true = xp.asarray(True, **beside(like))
    return HybridState(
        {key: _group(plan, weights, backend, outputs_last) for key, plan in found.items()},
        {plan.kind: Skill(_integer(0, like), *_numbers(0.0, 6, like)) for plan in predicted},
        _monitor(like),
        _clock(config, predicted, window_length(momentum), like),
        {name: xp.zeros_like(weights[name]) for plan in predicted for name in plan.names},
        _integer(0, like),
        true,
        ~~true,  # a buffer of its own, as a donated state needs
        Evidence(*_numbers(0.0, 3, like)),
        xp.asarray(tried(chosen_block(found)), dtype=xp.int32, **beside(like)),
    )


def _check(config: Any, momentum: Any, outputs_last: Any) -> None:
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    if not (isinstance(momentum, (int, float)) and 0.0 <= momentum < 1.0):
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    if not isinstance(outputs_last, bool):
        raise ConfigError("outputs_last", "True or False", outputs_last)


def _log_limits(
    found: Mapping[str, Plan], weights: Mapping[str, Any], config: HybridConfig
) -> None:
    """Say what ``max_overhead`` has changed, and whether too few weights would be predicted."""
    if (block := chosen_block(found)) is not None:
        updates = [plan.update for plan in found.values() if plan.update]
        logger.info("%s.", describe_block(block, config.max_overhead, updates).capitalize())
    before, after = (
        [p for p in each.values() if p.rule] for each in (plans(weights, config), found)
    )
    if len(after) < len(before):
        logger.warning("There are %s.", TOO_EXPENSIVE)
    moved = sum(math.prod(weights[name].shape) for plan in after for name in plan.names)
    gated = any(plan.rule and plan.rule.gated for plan in after)
    if gated and too_few(moved, count_trained(weights, config)):
        logger.warning("There are %s.", TOO_FEW)


def _warn_of_excess(
    found: Mapping[str, Plan],
    likes: Mapping[str, list[Any]],
    config: HybridConfig,
    step_operations: float | None,
) -> None:
    """Warn where even rows one by one are over the budget."""
    if step_operations is None:
        return
    count = operations(found, likes, config, chosen_block(found))
    if count > budget(step_operations, config.max_overhead):
        share = percent(count / step_operations)
        logger.warning("%s.", describe_excess(share, config.max_overhead).capitalize())


def _clock(config: HybridConfig, predicted: list[Plan], length: int, like: list[Any]) -> Clock:
    gated = bool(predicted) and all(plan.rule and plan.rule.gated for plan in predicted)
    residues, lengths = schedule(config, length, gated)
    xp = namespace(*like)
    zeros = {name: _integer(0, like) for name in ("steps", "full_steps", "undone_steps", "ticks")}
    return Clock(
        residues=xp.asarray(residues, dtype=xp.int32, **beside(like)),
        length=_integer(length, like),
        **{name: _integer(value, like) for name, value in lengths.items()},
        **zeros,
        plain=xp.asarray(False, **beside(like)),
    )


def _monitor(like: list[Any]) -> Monitor:
    means, squares = _numbers(0.0, 2, like), _numbers(0.0, 2, like)
    loss, norm = (Baseline(m, s, _integer(0, like)) for m, s in zip(means, squares, strict=True))
    return Monitor(loss, norm, *_numbers(math.nan, 2, like), *(_integer(0, like) for _ in range(4)))


def _integer(value: int, like: list[Any]) -> Any:
    xp = namespace(*like)
    return xp.asarray(value, dtype=xp.int32, **beside(like))


def _numbers(value: float, count: int, like: list[Any]) -> list[Any]:
    xp, dtype = namespace(*like), wide_dtype(*like)
    return [xp.asarray(value, dtype=dtype, **beside(like)) for _ in range(count)]


def _group(
    plan: Plan, weights: Mapping[str, Any], backend: ArrayBackend, outputs_last: bool
) -> Group:
    own = {name: weights[name] for name in plan.names}
    like = list(own.values())
    update = plan.update.init(turned(like, outputs_last), backend) if plan.update else None
    return Group(
        dict(zip(own, backend.zeros(like), strict=True)),
        dict(update.arrays) if update else {},
        dict(update.numbers) if update else {},
        histories.start(plan.rule, own, backend) if plan.rule else None,
    )
