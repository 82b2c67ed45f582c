"""The state before the first full step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import corrections, forecasts
from hybrid_predict.functional.arrays import check_arrays
from hybrid_predict.functional.kernels import wide_dtype, zeros
from hybrid_predict.functional.plan import Plan, Plans, make_plans
from hybrid_predict.functional.state import Clock, Group, HybridState, Pacing
from hybrid_predict.rules.budget import LONGEST_PERIOD, NONE_FIT, describe_period, remedies
from hybrid_predict.rules.gate import TOO_FEW, too_expensive, too_few
from hybrid_predict.rules.limits import first_limits
from hybrid_predict.rules.pace import Pace
from hybrid_predict.rules.schedule import Schedule, schedule
from hybrid_predict.rules.skill import Skill, steps_until_known, window_length
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
            for more, and what momentum carries on does not lengthen predicted steps.
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
    if not (isinstance(momentum, (int, float)) and 0.0 <= momentum < 1.0):
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    if not isinstance(outputs_last, bool):
        raise ConfigError("outputs_last", "True or False", outputs_last)
    xp = check_arrays("weights", weights)
    plans = make_plans(weights, config, outputs_last, step_operations)
    _log_limits(plans, make_plans(weights, config), config, step_operations or 0.0)
    length, dtype = window_length(momentum), wide_dtype(*weights.values())

    def arrays(tree: Any) -> Any:
        """Tuples of numbers as tuples of 0-dim arrays, each with a buffer of its own to donate."""
        if isinstance(tree, tuple):
            parts = map(arrays, tree)
            return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
        return xp.asarray(tree, dtype={bool: bool, int: xp.int32}.get(type(tree), dtype))

    def group(own: Plan) -> Group:
        like = {name: weights[name] for name in own.shapes}
        history = config.history_dtype
        memories = corrections.start(own, like, history) if own.update else None
        past = forecasts.start(own.predictor, like, config) if own.predictor else None
        peaks = {name: arrays(0.0) for name in like}
        return Group(zeros(like, history), memories, past, arrays(0), peaks)

    credit = arrays(0.0) if config.paced else None
    paces = {each.kind: arrays(Pace()) for each in plans.predicted if config.adaptive}
    return HybridState(
        {key: group(each) for key, each in plans.groups.items()},
        {each.kind: arrays(Skill()) for each in plans.predicted},
        arrays(first_limits(optimizers=1)),
        arrays(_schedule(config, length if plans.gated else 0)),
        arrays(Clock(length)),
        {name: xp.zeros_like(weights[name]) for each in plans.predicted for name in each.shapes},
        predicted=arrays(0),
        sound=arrays(True),
        stands=arrays(True),
        gated=arrays(plans.gated),
        evidence=arrays(Evidence()),
        pacing=Pacing(paces, credit, arrays(float(momentum))),
    )


def _log_limits(plans: Plans, wanted: Plans, config: HybridConfig, step_operations: float) -> None:
    """Say what ``max_overhead`` has changed, and whether too few weights would be predicted."""
    most, period = config.max_overhead, plans.period
    if period is not None and period > 1:
        logger.info("%s.", describe_period(period, most).capitalize())
    if len(plans.predicted) < len(wanted.predicted):
        logger.warning("There are %s.", too_expensive(most))
    elif wanted.corrects and not plans.corrects:
        needed = wanted.operations(LONGEST_PERIOD)
        logger.info("%s %s.", NONE_FIT, remedies(needed, step_operations, most, None))
    if plans.gated and too_few([plan.part(True) for plan in plans.predicted], plans.trained):
        logger.warning("There are %s.", TOO_FEW)


def _schedule(config: HybridConfig, length: int) -> Schedule:
    """The schedule, in numbers of 32 bits, with windows of ``length``; with 0 none are needed."""
    if config.total_steps is None and config.compression == 1:
        config = replace(config, total_steps=MOST_STEPS, warmup_steps=1, cooldown_steps=0)
    observed = steps_until_known(length, short=config.paced) if length else 0
    steps = schedule(config, observed)
    if steps.total > MOST_STEPS:
        remedy = "Use HybridEngine for longer runs."
        raise ConfigError("total_steps", f"at most {MOST_STEPS} steps", steps.total, remedy)
    full = min(steps.full, MOST_STEPS - 1)
    return steps._replace(full=full, group=min(steps.group, MOST_STEPS - full))
