"""The state before the first full step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybrid_predict.accounts.ledger import percent
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import corrections, forecasts
from hybrid_predict.functional.arrays import check_arrays
from hybrid_predict.functional.kernels import wide_dtype, zero_average
from hybrid_predict.functional.plan import (
    Plan,
    chosen_block,
    corrected_shapes,
    count_trained,
    operations,
    plans,
)
from hybrid_predict.functional.state import Clock, Group, HybridState
from hybrid_predict.rules.budget import budget, describe_block, describe_excess, tried
from hybrid_predict.rules.gate import TOO_EXPENSIVE, TOO_FEW, Part, too_few
from hybrid_predict.rules.limits import first_limits
from hybrid_predict.rules.schedule import Schedule, schedule
from hybrid_predict.rules.skill import FIRST, Skill, window_length
from hybrid_predict.rules.verdict import Evidence

logger = logging.getLogger(__name__)

MOST_STEPS = 2**31 - 1
"""Length of the longest run, since JAX counts in 32 bits."""


def init(
    weights: Mapping[str, Any],
    config: HybridConfig,
    *,
    momentum: float = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> HybridState:
    r"""Return the state before the first full step.

    Args:
        weights: All trained arrays by name, floating-point, of NumPy or of JAX.
        config: What is corrected and predicted; ``kinds`` names heads and embeddings.
        momentum: :math:`\beta_1` of the optimizer, in [0, 1): windows of displacements are longer
            for more.
        outputs_last: Whether matrices are of shape (inputs, outputs), as in most JAX libraries, in
            place of torch's (outputs, inputs).
        step_operations: Floating-point operations of forward and backward of a full step, of which
            ``config.max_overhead`` is a share. None corrects in full, whatever it says.

    Returns:
        A pytree of arrays. It takes three times the memory of the weights that are both corrected
        and predicted: averaged gradients, drift, and weights before predicted steps.

    Raises:
        ConfigError: If an argument has a value that cannot work.
    """
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    if not (isinstance(momentum, (int, float)) and 0.0 <= momentum < 1.0):
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    if not isinstance(outputs_last, bool):
        raise ConfigError("outputs_last", "True or False", outputs_last)
    xp = check_arrays("weights", weights)
    groups = plans(weights, config, outputs_last, step_operations)
    _log_limits(groups, weights, config)
    _warn_of_excess(groups, corrected_shapes(groups, weights, outputs_last), config,
                    step_operations)  # fmt: skip
    predicted = [plan for plan in groups.values() if plan.predictor]
    gated = bool(predicted) and all(plan.predictor.gated for plan in predicted if plan.predictor)
    length, dtype = window_length(momentum), wide_dtype(*weights.values())

    def arrays(tree: Any) -> Any:
        """Named tuples of numbers as named tuples of 0-dim arrays, each with its own buffer."""
        if isinstance(tree, tuple):
            parts = [arrays(each) for each in tree]
            return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
        return xp.asarray(tree, dtype={bool: bool, int: xp.int32}.get(type(tree), dtype))

    return HybridState(
        {key: _group(plan, weights, config, outputs_last) for key, plan in groups.items()},
        {plan.kind: arrays(Skill()) for plan in predicted},
        arrays(first_limits(optimizers=1)),
        arrays(_schedule(config, FIRST * length if gated else 0)),
        arrays(Clock(length)),
        {name: xp.zeros_like(weights[name]) for plan in predicted for name in plan.names},
        predicted=arrays(0),
        sound=arrays(True),
        stands=arrays(True),
        gated=arrays(gated),
        evidence=arrays(Evidence()),
        blocks=xp.asarray(tried(chosen_block(groups)), dtype=xp.int32),
    )


def _log_limits(
    groups: Mapping[str, Plan], weights: Mapping[str, Any], config: HybridConfig
) -> None:
    """Say what ``max_overhead`` has changed, and whether too few weights would be predicted."""
    if (block := chosen_block(groups)) is not None:
        updates = [plan.update for plan in groups.values() if plan.update]
        logger.info("%s.", describe_block(block, config.max_overhead, updates).capitalize())
    before, after = (
        [plan for plan in each.values() if plan.predictor]
        for each in (plans(weights, config), groups)
    )
    if len(after) < len(before):
        logger.warning("There are %s.", TOO_EXPENSIVE)
    parts = [part(plan, weights, True) for plan in after]
    if any(each.gated for each in parts) and too_few(parts, count_trained(weights, config)):
        logger.warning("There are %s.", TOO_FEW)


def part(plan: Plan, weights: Mapping[str, Any], ready: Any) -> Part:
    """Return a predicted group as the gate sees it, with sizes as floats: JAX has 32-bit integers.

    Args:
        plan: The group, which has a predictor.
        weights: Arrays by name.
        ready: Whether it may be predicted, a bool or a 0-dim bool array.
    """
    assert plan.predictor is not None
    size: Any = float(sum(math.prod(weights[name].shape) for name in plan.names))
    return Part(size, plan.predictor.gated, ready, plan.kind == "embedding")


def _warn_of_excess(
    groups: Mapping[str, Plan],
    shapes: Mapping[str, list[tuple[int, int]]],
    config: HybridConfig,
    step_operations: float | None,
) -> None:
    """Warn if corrections exceed the budget even with rows one by one."""
    if step_operations is None:
        return
    count = operations(groups, shapes, chosen_block(groups))
    if count > budget(step_operations, config.max_overhead):
        share = percent(count / step_operations)
        logger.warning("%s.", describe_excess(share, config.max_overhead).capitalize())


def _schedule(config: HybridConfig, observed: int) -> Schedule:
    """The schedule, in numbers that fit in 32 bits.

    Raises:
        ConfigError: If the run's length is needed and unknown, or larger than :data:`MOST_STEPS`.
    """
    if config.total_steps is None and config.compression == 1:
        config = replace(config, total_steps=MOST_STEPS, warmup_steps=1, cooldown_steps=0)
    steps = schedule(config, observed)
    if steps.total > MOST_STEPS:
        remedy = "Use HybridEngine for longer runs."
        raise ConfigError("total_steps", f"at most {MOST_STEPS} steps", steps.total, remedy)
    full = min(steps.full, MOST_STEPS // 2)
    return steps._replace(full=full, group=min(steps.group, MOST_STEPS // 2))


def _group(
    plan: Plan, weights: Mapping[str, Any], config: HybridConfig, outputs_last: bool
) -> Group:
    history = config.history_dtype
    like = {name: weights[name] for name in plan.names}
    return Group(
        {name: zero_average(x, history) for name, x in like.items()},
        corrections.start(plan, like, history, outputs_last) if plan.update else None,
        forecasts.start(plan.predictor, like, history) if plan.predictor else None,
    )
