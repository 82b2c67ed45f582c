"""Which groups predicted steps move, how many are due, and how long they are, on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.functional.kernels import largest
from hybrid_predict.functional.plan import Plans
from hybrid_predict.functional.state import HybridState
from hybrid_predict.rules import schedule
from hybrid_predict.rules.gate import Part, suffice
from hybrid_predict.rules.numbers import array_library, ratio, select
from hybrid_predict.rules.pace import Pace, length, paced, per_full_step, renewed
from hybrid_predict.rules.skill import enough


def due(state: HybridState) -> Any:
    """Return the number of predicted steps that are due right before the coming full step."""
    steps = state.clock.steps
    if state.pacing.credit is None:
        count = schedule.due(state.schedule, steps)
    else:
        count = paced(state.schedule, steps, state.pacing.credit)
    return count.astype(state.predicted.dtype)


def renew(state: HybridState, plans: Plans, rates: Mapping[str, Any], may: Any) -> HybridState:
    """Return the state in which advances begin anew that were measured at far smaller rates."""
    paces = dict(state.pacing.paces)
    for plan in plans.predicted if paces else ():
        rate = largest(rates[name] for name in plan.shapes)
        paces[plan.kind] = select(may, renewed(paces[plan.kind], rate), paces[plan.kind])
    return state._replace(pacing=state.pacing._replace(paces=paces))


def forecasts_of(
    count: Any, state: HybridState, plans: Plans, config: HybridConfig
) -> dict[str, Any]:
    """Return how many forecasts so many predicted steps move each group that has a predictor."""
    xp, ready = array_library(count), _ready(state, plans)
    number, counts = config.compression - 1.0, {}
    if config.paced:
        number = _per_full_step(state, plans, ready)
    for key, may in ready.items():
        kind = plans.groups[key].kind
        drifts = length(state.pacing.paces.get(kind, Pace()).advance, number)
        least = 1.0 if kind in config.always_predicted else 0.0
        forecasts = xp.maximum(ratio(drifts, state.skills[kind].length), least)
        counts[key] = xp.where(may, count * forecasts, 0.0)
    return counts


def counted(state: HybridState, plans: Plans) -> HybridState:
    """Return the state with a full step counted for the number of predicted steps that are due."""
    credit = state.pacing.credit
    if credit is None:
        return state
    new = credit % 1.0 + _per_full_step(state, plans, _ready(state, plans))
    new = array_library(credit).asarray(new, dtype=credit.dtype)
    return state._replace(pacing=state.pacing._replace(credit=new))


def _ready(state: HybridState, plans: Plans) -> dict[str, Any]:
    """Which groups may be predicted, as 0-dim bools: those with skill, if they suffice."""
    parts: dict[str, Part] = {}
    for key, plan in plans.groups.items():
        history = state.groups[key].history
        if plan.predictor is not None and history is not None:
            ready = history.count > 0
            if plan.predictor.gated:
                ready = ready & enough(state.skills[plan.kind])
            if not plan.decides:
                ready = ready & (state.pacing.paces.get(plan.kind, Pace()).advance > 0.0)
            parts[key] = plan.part(ready)
    may = suffice(list(parts.values()), plans.trained) if parts else False
    return {key: part.ready & may if part.gated else part.ready for key, part in parts.items()}


def _per_full_step(state: HybridState, plans: Plans, ready: dict[str, Any]) -> Any:
    """The number of predicted steps per full step; groups that may not be predicted add none."""
    groups, paces = plans.groups, state.pacing.paces
    return per_full_step(
        (groups[key].size, paces[groups[key].kind].advance * may) for key, may in ready.items()
    )
