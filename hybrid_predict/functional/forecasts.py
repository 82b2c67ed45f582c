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
from hybrid_predict.functional.corrections import Moved, Update
from hybrid_predict.functional.kernels import dot, wide, wide_dtype, zero_unless
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Group, History, HybridState
from hybrid_predict.rules.numbers import array_library, select
from hybrid_predict.rules.pace import Lagged, lag
from hybrid_predict.rules.skill import DRIFT, SAMPLE, Pooled, add_squares, fit, pool, window_bounds
from hybrid_predict.rules.verdict import Slopes


@final
class Seen(NamedTuple):
    """What a group has shown in a full step; zeros where it has shown nothing."""

    kind: str
    slopes: Slopes  # of predicted steps and of the update
    end: Any  # slope of predicted steps where they end
    pooled: Pooled  # what a window has measured that has closed
    lagged: Lagged  # its products with the forecast of the window before
    rate: Any  # its mean learning rate


def start(
    predictor: FittedPredictor | MomentumPredictor, like: Mapping[str, Any], config: HybridConfig
) -> History:
    """Return a history without any displacement."""
    xp, dtype, count = array_library(*like.values()), wide_dtype(*like.values()), len(like)

    def numbers(value: float, *shape: int) -> Any:
        return xp.full(shape, value, dtype=dtype)

    def empty() -> dict[str, Any]:
        return {name: xp.zeros_like(x) for name, x in _sampled(like).items()}

    factor = predictor.coefficient if isinstance(predictor, MomentumPredictor) else START
    return History(
        kernels.zeros(like, config.history_dtype), xp.zeros((), dtype=xp.int32),
        numbers(factor, count), numbers(0.0, count, 2), empty(), empty(), numbers(0.0), empty(),
        numbers(factor, count), numbers(0.0, count),
        Pooled(*(numbers(0.0) for _ in Pooled._fields)), empty(),
    )  # fmt: skip


def learn(
    plan: Plan, moved: Moved, made: Any, update: Update, state: HybridState
) -> tuple[Group, Seen]:
    """Add the displacement of a full step, before which ``made`` forecasts moved the group.

    Nothing changes if all learning rates are 0.
    """
    predictor, group, before = plan.predictor, moved.group, moved.group.history
    assert predictor is not None and before is not None
    displaced = _displacements(moved, update)
    xp = array_library(*displaced.values())
    rate = kernels.largest(update.rates[name] for name in displaced)
    learns = rate > 0
    now = _averaged(before, predictor.decay, displaced, moved.frozen, update.history)
    now = now._replace(rates=before.rates + rate)
    length, short = state.clock.length, state.pacing.credit is not None
    opens = now.count == window_bounds(now.count, length, short=short)[0]
    begin, _ = window_bounds(before.count, length, short=short)
    full, steps = learns & opens & (begin > 0), now.count - begin
    after = select(opens, _opened(now), now)
    gram, chance, squares = _products(now, displaced)
    if isinstance(predictor, FittedPredictor):
        sums = select(full, add_squares(before.sums, gram, steps, predictor.memory), before.sums)
        factors = fit(sums, predictor.ridge)
        factors = select(sums[:, 0].sum() > 0.0, factors, before.factors)
        after = after._replace(sums=sums, factors=factors)
    following = (after.factors**2 * gram[:, 2, 2]).sum()
    pooled = pool(gram, chance, squares, steps, following)
    after = after._replace(latest=select(full, pooled, before.latest))
    follows = bool(state.pacing.paces)
    lagged = _lagged(plan, now, displaced, begin, state) if follows else Lagged()
    slopes, end = _slopes(group, before, displaced, made, update)
    closed = zero_unless(full, pooled), zero_unless(full, lagged)
    seen = Seen(plan.kind, slopes, end, *closed, xp.where(full, now.rates / steps, 0.0))
    return group._replace(history=select(learns, after, before)), seen


def _displacements(moved: Moved, update: Update) -> dict[str, Any]:
    """Displacements per unit of the learning rate, by name; 0 where the rate is 0.

    Entries that only the optimizer moves count as unmoved: a displacement by a gradient that is not
    finite would stay in the drift.
    """
    found = {}
    for name, mask in moved.still.items():
        rate, xp = update.rates[name], array_library(mask)
        change = wide(moved.weights[name]) - wide(update.before[name])
        change = change / xp.where(rate != 0, rate, 1.0)
        found[name] = xp.where(~mask & (rate != 0), change, xp.zeros_like(change))
    return found


def _slopes(
    group: Group, before: History, displaced: Mapping[str, Any], made: Any, update: Update
) -> tuple[Slopes, Any]:
    """Slopes of forecasts, from the drift, as 16 bits round moved weights, and where they end.

    All are 0 without forecasts.
    """
    each, end = [], 0.0
    for k, (name, drift) in enumerate(before.drift.items()):
        rate, mean, change = update.rates[name], group.average[name], displaced[name]
        length = rate * made * before.factors[k]
        end = end + length * dot(update.gradients[name], drift)
        forecast = length * dot(mean, drift), length**2 * dot(drift, drift)
        each.append(Slopes(*forecast, rate * dot(mean, change), rate**2 * dot(change, change)))
    slopes = kernels.total(Slopes, each)
    return zero_unless(slopes.square > 0, slopes), end


def _averaged(
    before: History,
    decay: float,
    displaced: Mapping[str, Any],
    frozen: Mapping[str, Any],
    history: str,
) -> History:
    """The history with one more displacement."""
    count, sample, drift, average, moved = before.count + 1, _sampled(displaced), {}, {}, {}
    xp, alike = array_library(count), 1.0 - 1.0 / count
    for name, mean in before.drift.items():
        new = kernels.average(mean, displaced[name], xp.minimum(decay, alike), history)
        drift[name] = xp.where(frozen[name], xp.zeros_like(new), new)
        average[name] = kernels.blend(before.average[name], sample[name], xp.minimum(DRIFT, alike))
        moved[name] = before.moved[name] + sample[name]
    return before._replace(drift=drift, count=count, average=average, moved=moved)


def _opened(now: History) -> History:
    """The history at the beginning of a window, about the forecast before this one was read."""
    xp = array_library(now.count)
    forecasts = zip(now.multiples, now.direction.items(), strict=True)
    return now._replace(
        moved={name: xp.zeros_like(x) for name, x in now.moved.items()},
        rates=xp.zeros_like(now.rates),
        direction=_sampled(now.drift),
        multiples=now.factors,
        squares=xp.stack([dot(x, x) for x in now.average.values()]),
        before={name: factor * x for factor, (name, x) in forecasts},
    )


def _lagged(
    plan: Plan, now: History, displaced: Mapping[str, Any], begin: Any, state: HybridState
) -> Lagged:
    """Products of the forecast of the window before with the one after ``begin`` displacements."""
    late, decay, short = 0.0, state.pacing.momentum, state.pacing.credit is not None
    for name, forecast in now.before.items():
        share = displaced[name].size / forecast.size
        late = late + share * dot(now.moved[name], forecast)
    earlier, _ = window_bounds(begin - 1, state.clock.length, short=short)
    if plan.update is not None:
        own, whole = plan.update.decay, plan.update.share >= 1.0
        decay = own if whole else array_library(decay).maximum(own, decay)
    return lag(decay, begin - earlier, now.count - begin, late, now.latest)


def _products(now: History, displaced: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Inner products in a window, variances by chance, and squared drifts; see :func:`pool`."""
    gram, chance, squares = [], [], []
    for k, (name, moved) in enumerate(now.moved.items()):
        direction, xp = now.direction[name], array_library(moved)
        forecast, share = now.multiples[k] * direction, displaced[name].size / moved.size
        rows = xp.stack([moved, forecast, direction])
        gram.append(share * (rows @ rows.T))
        chance.append(share**2 * ((moved * forecast) ** 2).sum())
        squares.append(share * now.squares[k])
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
