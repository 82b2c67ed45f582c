"""Forecasts of one group, and windows that compare them with what followed, on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.forecast.drift import START
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor
from hybrid_predict.functional import kernels
from hybrid_predict.functional.corrections import Update, unmoved
from hybrid_predict.functional.kernels import wide, wide_dtype
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Clock, Group, History
from hybrid_predict.rules.numbers import array_library, select
from hybrid_predict.rules.pace import Lagged, lag
from hybrid_predict.rules.skill import (
    DRIFT,
    SAMPLE,
    Pooled,
    add_squares,
    fit,
    pool,
    window_bounds,
)

Predictor = FittedPredictor | MomentumPredictor


@final
class Closed(NamedTuple):
    """The numbers of a window; zeros if it has not closed.

    Args:
        pooled: What it measured, for the skill.
        lagged: Products with the forecast of the window before, for the pace.
    """

    pooled: Pooled
    lagged: Lagged


def start(predictor: Predictor, like: Mapping[str, Any], config: HybridConfig) -> History:
    """Return a history without any displacement."""
    xp, dtype, count = array_library(*like.values()), wide_dtype(*like.values()), len(like)

    def numbers(value: float, *shape: int) -> Any:
        return xp.full((count, *shape), value, dtype=dtype)

    def empty() -> dict[str, Any]:
        return {name: xp.zeros_like(x) for name, x in _sampled(like).items()}

    factor = predictor.coefficient if isinstance(predictor, MomentumPredictor) else START
    return History(
        kernels.zeros(like, config.history_dtype), xp.zeros((), dtype=xp.int32), numbers(factor),
        numbers(0.0, 2), empty(), empty(), empty(), numbers(factor), numbers(0.0),
        Pooled(*(xp.zeros((), dtype=dtype) for _ in Pooled._fields)),
        empty() if config.paced else {},
    )  # fmt: skip


def displacements(
    update: Update, weights: Mapping[str, Any], still: Mapping[str, Any]
) -> dict[str, Any]:
    """Return displacements per unit of the learning rate, by name; 0 where the rate is 0.

    Entries that ``still`` masks count as unmoved: a displacement by a gradient that is not finite
    would stay in the drift.
    """
    moved = {}
    for name, mask in still.items():
        rate, xp = update.rates[name], array_library(mask)
        change = (wide(weights[name]) - wide(update.before[name])) / xp.where(rate != 0, rate, 1.0)
        moved[name] = xp.where(~mask & (rate != 0), change, xp.zeros_like(change))
    return moved


def learn(
    plan: Plan, group: Group, moved: Mapping[str, Any], update: Update, clock: Clock, momentum: Any
) -> tuple[Group, Closed]:
    """Add the displacement of one full step; nothing changes if all learning rates are 0.

    Entries that stand still in the update lose their drift.

    Returns:
        The group, and the window.
    """
    predictor, before, frozen = plan.predictor, group.history, unmoved(plan, update)
    assert predictor is not None and before is not None
    xp, count, sample = array_library(*moved.values()), before.count + 1, _sampled(moved)
    learns = (xp.stack([update.rates[name] for name in moved]) != 0).any()
    decay, drift, average = 1.0 - 1.0 / count, {}, {}
    for name, mean in before.drift.items():
        new = kernels.average(mean, moved[name], xp.minimum(predictor.decay, decay), update.history)
        drift[name] = xp.where(frozen[name], xp.zeros_like(new), new) if name in frozen else new
        average[name] = kernels.blend(before.average[name], sample[name], xp.minimum(DRIFT, decay))
    total = {name: x + sample[name] for name, x in before.moved.items()}
    now = before._replace(drift=drift, count=count, average=average, moved=total)
    length, short = clock.length, bool(before.before)  # kept with speedup="auto" only
    opens = count == window_bounds(count, length, short=short)[0]
    begin, _ = window_bounds(before.count, length, short=short)
    full = learns & opens & (begin > 0)
    # The next window is about the forecast as it was before this one was read.
    opened = now._replace(
        moved={name: xp.zeros_like(x) for name, x in total.items()},
        direction=_sampled(drift),
        multiples=before.factors,
        squares=xp.stack([kernels.dot(x, x) for x in average.values()]),
        before={
            name: before.multiples[k] * direction
            for k, (name, direction) in enumerate(before.direction.items())
            if name in before.before
        },
    )
    after = select(opens, opened, now)
    gram, chance, squares = _products(now, moved)
    steps = count - begin
    if isinstance(predictor, FittedPredictor):
        sums = select(full, add_squares(before.sums, gram, steps, predictor.memory), before.sums)
        factors = fit(sums, predictor.ridge)
        factors = select(sums[:, 0].sum() > 0.0, factors, before.factors)
        after = after._replace(sums=sums, factors=factors)
    following = (after.factors**2 * gram[:, 2, 2]).sum()
    pooled = pool(gram, chance, squares, steps, following)
    after = after._replace(latest=select(full, pooled, before.latest))
    pooled = Pooled(*(xp.where(full, x, 0.0) for x in pooled))
    lagged = _lagged(plan, now, moved, begin, clock, momentum) if short else Lagged()
    lagged = Lagged(*(xp.where(full, x, 0.0) for x in lagged))
    group = group._replace(history=select(learns, after, before))
    return group, Closed(pooled, lagged)


def _lagged(
    plan: Plan, history: History, moved: Mapping[str, Any], begin: Any, clock: Clock, momentum: Any
) -> Lagged:
    """Products of the forecast of the window before with the one after ``begin`` displacements."""
    late = 0.0
    for name, forecast in history.before.items():
        share = moved[name].size / forecast.size
        late = late + share * kernels.dot(history.moved[name], forecast)
    earlier, _ = window_bounds(begin - 1, clock.length, short=True)
    decay = momentum
    if plan.update is not None:
        own, whole = plan.update.decay, plan.update.share >= 1.0
        decay = own if whole else array_library(momentum).maximum(own, momentum)
    return lag(decay, begin - earlier, history.count - begin, late, history.latest)


def _products(history: History, moved: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Inner products in a window, variances by chance, and squared drifts; see :func:`pool`."""
    gram, chance, squares = [], [], []
    for k, (name, total) in enumerate(history.moved.items()):
        direction, xp = history.direction[name], array_library(total)
        forecast, share = history.multiples[k] * direction, moved[name].size / total.size
        rows = xp.stack([total, forecast, direction])
        gram.append(share * (rows @ rows.T))
        chance.append(share**2 * ((total * forecast) ** 2).sum())
        squares.append(share * history.squares[k])
    return xp.stack(gram), xp.stack(chance), xp.stack(squares)


def _sampled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are compared, of each array, in at least 32 bits."""
    flat = {name: x.reshape(-1) for name, x in arrays.items()}
    places = {name: _places(x.size) for name, x in flat.items()}
    return {name: wide(x if places[name] is None else x[places[name]]) for name, x in flat.items()}


@lru_cache(maxsize=256)
def _places(size: int) -> Any:
    """Places of the sampled entries, the same for all arrays of a size; None for all entries.

    The engine draws others.
    """
    return None if size <= SAMPLE else np.random.default_rng(size).integers(size, size=SAMPLE)
