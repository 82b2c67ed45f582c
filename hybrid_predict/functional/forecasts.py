"""Forecasts of one group, and windows that compare them with what followed, on arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor
from hybrid_predict.forecast.predictors.fitted import START
from hybrid_predict.functional import kernels
from hybrid_predict.functional.kernels import wide, wide_dtype
from hybrid_predict.functional.state import History, Window
from hybrid_predict.rules.numbers import array_library, select
from hybrid_predict.rules.skill import (
    DRIFT,
    SAMPLE,
    Pooled,
    Skill,
    add_squares,
    add_window,
    fit,
    pool,
)

Predictor = FittedPredictor | MomentumPredictor


def start(predictor: Predictor, like: Mapping[str, Any], history: str) -> History:
    """Return a history without any displacement."""
    xp, dtype, count = array_library(*like.values()), wide_dtype(*like.values()), len(like)

    def empty() -> dict[str, Any]:
        return {name: xp.zeros_like(x) for name, x in _sampled(like).items()}

    def factors() -> Any:
        fixed = isinstance(predictor, MomentumPredictor)
        return xp.full(count, predictor.coefficient if fixed else START, dtype=dtype)

    def none() -> Any:
        return xp.zeros((), dtype=xp.int32)

    squares = xp.zeros(count, dtype=dtype)
    window = Window(empty(), empty(), empty(), factors(), squares, none(), none())
    drift = {name: kernels.zero_average(x, history) for name, x in like.items()}
    return History(drift, none(), factors(), xp.zeros((count, 2), dtype=dtype), window)


def learn(
    predictor: Predictor,
    history: History,
    moved: Mapping[str, Any],
    frozen: Mapping[str, Any],
    length: Any,
    learns: Any,
    dtype: str,
) -> tuple[History, Pooled]:
    """Add the displacement of one full step, per unit of the learning rate.

    Args:
        predictor: How the group is forecast.
        history: What is known.
        moved: Displacements by name.
        frozen: Masks of the entries that stand still now, which lose their drift, by name.
        length: Displacements in a window, 0-dim integer.
        learns: Whether this one counts, 0-dim bool.
        dtype: Type in which averages are stored.

    Returns:
        The new history, and the numbers of the window if it has closed, else zeros.
    """
    xp, count = array_library(*moved.values()), history.count + 1
    window, gram, chance, drifts = _observed(history, moved)
    window_steps = window.count
    full = (history.window.seen >= length // 2) & (window.seen % length == 0)
    decay, drift = xp.minimum(predictor.decay, 1.0 - 1.0 / count), {}
    for name, mean in history.drift.items():
        new = kernels.average(mean, moved[name], decay, dtype)
        drift[name] = xp.where(frozen[name], xp.zeros_like(new), new) if name in frozen else new
    # The next window is about the forecast as it was before this one was read.
    opens = full | (window.seen == length // 2)
    window = select(opens, _opened(window, drift, history.factors), window)
    factors, sums = history.factors, history.sums
    if isinstance(predictor, FittedPredictor):
        sums = select(full, add_squares(sums, gram, window_steps, predictor.memory), sums)
        factors = select(sums[:, 0].sum() > 0.0, fit(sums, predictor.ridge), factors)
    following = (factors**2 * gram[:, 2, 2]).sum()
    numbers = pool(gram, chance, drifts, window_steps, following)
    closed = Pooled(*(xp.where(full & learns, number, 0.0) for number in numbers))
    new = History(drift, count, factors, sums, window)
    return select(learns, new, history), closed


def score(skill: Skill, windows: list[Pooled]) -> Skill:
    """Add windows of all groups of a kind; those that have not closed are zeros."""
    return add_window(skill, Pooled(*map(sum, zip(*windows, strict=True))))


def _observed(history: History, moved: Mapping[str, Any]) -> tuple[Window, Any, Any, Any]:
    """The window with one more displacement, and its inner products as :func:`pool` takes them."""
    window, sample = history.window, _sampled(moved)
    xp, seen = array_library(*sample.values()), window.seen + 1
    share = 1.0 - xp.minimum(DRIFT, 1.0 - 1.0 / seen)
    drift = {name: mean + share * (sample[name] - mean) for name, mean in window.drift.items()}
    sums = {name: x + sample[name] for name, x in window.moved.items()}
    gram, chance, drifts = [], [], []
    for k, (name, x) in enumerate(sums.items()):
        direction, size = window.direction[name], math.prod(moved[name].shape)
        forecast = window.factors[k] * direction
        rows, weight = xp.stack([x, forecast, direction]), size / min(size, SAMPLE)
        gram.append(weight * (rows @ rows.T))
        chance.append(weight**2 * ((x * forecast) ** 2).sum())
        drifts.append(weight * window.squares[k])
    window = window._replace(drift=drift, moved=sums, seen=seen, count=window.count + 1)
    return window, *map(xp.stack, (gram, chance, drifts))


def _opened(window: Window, drift: Mapping[str, Any], factors: Any) -> Window:
    """A window that opens now, with the drifts of all entries."""
    xp = array_library(factors)
    return window._replace(
        moved={name: xp.zeros_like(x) for name, x in window.moved.items()},
        direction=_sampled(drift),
        factors=factors,
        squares=xp.stack([kernels.dot(x, x) for x in window.drift.values()]),
        count=0 * window.count,
    )


def _sampled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are compared, of each array, in at least 32 bits."""
    sample = {}
    for name, x in arrays.items():
        flat, places = x.reshape(-1), _places(math.prod(x.shape))
        sample[name] = wide(flat if places is None else flat[places])
    return sample


@lru_cache(maxsize=256)
def _places(size: int) -> Any:
    """Places of the sampled entries, None for all; the engine draws others.

    They depend on the size alone, so that all runs sample the same entries.
    """
    return None if size <= SAMPLE else np.random.default_rng(size).integers(size, size=SAMPLE)
