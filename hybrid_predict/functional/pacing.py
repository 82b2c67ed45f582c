"""How many predicted steps follow each full step, and how long they are, on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_predict.config import HybridConfig
from hybrid_predict.functional.forecasts import Closed
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import HybridState, Pacing
from hybrid_predict.rules import schedule
from hybrid_predict.rules.numbers import array_library, ratio
from hybrid_predict.rules.pace import Lagged, follow, length, paced, per_full_step, weigh
from hybrid_predict.rules.verdict import Slopes


def due(state: HybridState, config: HybridConfig) -> Any:
    """Return the number of predicted steps that are due right before the coming full step."""
    steps, like = state.clock.steps, state.predicted
    if config.paced:
        return paced(state.schedule, steps, state.pacing.credit).astype(like.dtype)
    return schedule.due(state.schedule, steps).astype(like.dtype)


def forecasts_of(
    count: Any,
    state: HybridState,
    groups: Mapping[str, Plan],
    ready: Mapping[str, Any],
    config: HybridConfig,
) -> dict[str, Any]:
    """Return how many forecasts ``count`` predicted steps move each group that has a predictor.

    Args:
        count: Number of predicted steps, 0-dim integer.
        state: The state before their full step.
        groups: The plans.
        ready: Which groups may be predicted, 0-dim bools.
        config: The configuration.
    """
    xp = array_library(count)
    if not config.paced:
        return {key: xp.where(may, count, 0) for key, may in ready.items()}
    number, counts = _per_full_step(state, groups, ready), {}
    for key, may in ready.items():
        kind = groups[key].kind
        drifts = length(state.pacing.paces[kind].advance, number)
        counts[key] = xp.where(may, count * ratio(drifts, state.skills[kind].length), 0.0)
    return counts


def learned(
    pacing: Pacing,
    slopes: Slopes,
    predicted: Any,
    refuted: Any,
    windows: Mapping[str, list[Closed]],
) -> Pacing:
    """Return the paces after a full step whose predicted steps stand.

    Args:
        pacing: That before it.
        slopes: Slopes of the predicted steps.
        predicted: Number of predicted steps.
        refuted: See :func:`rules.pace.weigh`.
        windows: What has closed, by kind.
    """
    paces = {}
    for kind, pace in pacing.paces.items():
        lagged = (window.lagged for window in windows[kind])
        summed = Lagged(*map(sum, zip(*lagged, strict=True)))
        paces[kind] = follow(weigh(pace, slopes, predicted, refuted), summed)
    return pacing._replace(paces=paces)


def counted(
    state: HybridState, groups: Mapping[str, Plan], ready: Mapping[str, Any]
) -> HybridState:
    """Return the state with a full step counted for the number of predicted steps that are due."""
    credit = state.pacing.credit
    new = credit % 1.0 + _per_full_step(state, groups, ready)
    new = array_library(credit).asarray(new, dtype=credit.dtype)
    return state._replace(pacing=state.pacing._replace(credit=new))


def _per_full_step(state: HybridState, groups: Mapping[str, Plan], ready: Mapping[str, Any]) -> Any:
    """The number of predicted steps per full step; groups that may not be predicted add none."""
    paces = state.pacing.paces
    return per_full_step(
        (groups[key].size, paces[groups[key].kind].advance * may) for key, may in ready.items()
    )
