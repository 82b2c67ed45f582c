"""Windows, skill and fitted coefficients, as functions of arrays.

The rules are those of `forecast.window`, `forecast.skill` and `forecast.predictors.fitted`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import torch

from hybrid_predict.forecast.predictors.fitted import FittedPredictor
from hybrid_predict.forecast.window import DRIFT, SAMPLE
from hybrid_predict.functional.state import Skill, Window, select
from hybrid_predict.rules.skill import FIRST, MEMORY, RESOLUTION, SHORTEST
from hybrid_predict.tensors.arrays import beside, cast, namespace, wide_dtype


@final
class Reading(NamedTuple):
    """What a window has shown once it is full.

    Args:
        full: Whether it is, 0-dim bool.
        gram: Inner products of displacement, forecast and fitted directions, shape
            (T, 2 + J, 2 + J).
        chance: Variance of the product of forecast and displacement, shape (T,).
        drift: Squared lengths of the drift, shape (T,).
        steps: Displacements in it, 0-dim.
        square: Squared length of the next forecast over all tensors, 0-dim.
    """

    full: Any
    gram: Any
    chance: Any
    drift: Any
    steps: Any
    square: Any


def sampled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are compared, of each array, in at least 32 bits."""
    found = {}
    for name, x in arrays.items():
        xp = namespace(x)
        flat, places = xp.reshape(x, (-1,)), _places(math.prod(x.shape))
        if places is not None:
            flat = xp.take(flat, xp.asarray(places, **beside([x])), axis=0)
        found[name] = cast(flat, wide_dtype(x))
    return found


@lru_cache(maxsize=256)
def _places(size: int) -> Any:
    """The engine's sample of so many entries; None for all."""
    if size <= SAMPLE:
        return None
    return torch.randint(size, (SAMPLE,), generator=torch.Generator().manual_seed(size)).numpy()


def observe(window: Window, moved: Mapping[str, Any], length: Any) -> tuple[Window, Reading]:
    """Add a displacement per unit of the learning rate, and read the window if it is full then."""
    sample = sampled(moved)
    first = next(iter(sample.values()))
    xp, dtype = namespace(first), wide_dtype(first)
    is_open = window.seen >= length // 2
    seen, count = window.seen + 1, window.count + 1
    share = 1.0 - xp.minimum(xp.asarray(1.0 - 1.0 / cast(seen, dtype)), xp.asarray(
        DRIFT, dtype=dtype, **beside([first])))  # fmt: skip
    drift = {n: d + share * (sample[n] - d) for n, d in window.drift.items()}
    sums = {n: x + sample[n] for n, x in window.moved.items()}
    gram, chance, drifts = [], [], []
    for k, (name, x) in enumerate(sums.items()):
        each = xp.stack([x, *(frozen[name] for frozen in window.frozen)])
        entries = math.prod(moved[name].shape)
        weight = entries / min(entries, SAMPLE)
        gram.append(weight * (each @ xp.permute_dims(each, (1, 0))))
        product = each[0, :] * each[1, :]
        chance.append(weight**2 * xp.sum(product * product))
        drifts.append(weight * window.squares[k])
    grams = xp.stack(gram)
    steps, square = cast(count, dtype), xp.sum(grams[:, 1, 1])
    full = is_open & (seen % length == 0)
    reading = Reading(full, grams, xp.stack(chance), xp.stack(drifts), steps, square)
    return Window(drift, sums, window.frozen, window.squares, seen, count), reading


def reopen(
    window: Window,
    forecast: Mapping[str, Any],
    directions: Sequence[Mapping[str, Any]],
    full: Any,
    length: Any,
) -> Window:
    """Freeze forecast and directions where the first window opens, or the last one is full."""
    first = next(iter(window.drift.values()))
    xp = namespace(first)
    fresh = window._replace(
        moved={name: xp.zeros_like(x) for name, x in window.moved.items()},
        frozen=(sampled(forecast), *(sampled(each) for each in directions)),
        squares=xp.stack([xp.sum(x * x) for x in window.drift.values()]),
        count=xp.zeros_like(window.count),
    )
    result: Window = select(full | (window.seen == length // 2), fresh, window)
    return result


def add_skill(skill: Skill, readings: Sequence[Reading]) -> Skill:
    """Take the readings of all groups of a kind; those that are not full count for nothing."""
    xp = namespace(skill.mean)
    sums = [xp.zeros_like(skill.mean) for _ in range(6)]
    for one in readings:
        total, steps = xp.sum(one.gram, axis=0), one.steps
        dot, moved = total[0, 1] / steps, total[0, 0] / steps**2
        chance = xp.sum(one.chance) / steps**2
        parts = dot, moved, total[1, 1], xp.sum(one.drift), chance, one.square
        sums = [
            s + xp.where(one.full, part, xp.zeros_like(part))
            for s, part in zip(sums, parts, strict=True)
        ]
    dot, moved, forecast, drift, chance, square = sums
    sizes = xp.sqrt(_nonnegative(moved)) * xp.sqrt(_nonnegative(forecast))
    usable = (sizes > 0) & xp.isfinite(sizes) & xp.isfinite(dot)
    cosine = _clip(_ratio(dot, sizes), -1.0, 1.0)
    windows = skill.windows + 1
    share = 1.0 / cast(_clip(windows, 1, MEMORY), skill.mean.dtype)
    off = cosine * xp.abs(cosine) - skill.mean
    fitted = _ratio(dot, xp.sqrt(_nonnegative(forecast * drift)))
    error = _ratio(moved - 2.0 * dot + forecast, moved)
    new = Skill(
        windows,
        skill.mean + share * off,
        (1.0 - share) * (skill.square + share * off * off),
        skill.chance + share * (_ratio(chance, sizes * sizes) - skill.chance),
        xp.where(drift > 0, xp.sqrt(_nonnegative(_ratio(square, drift))), skill.length),
        xp.where(drift > 0, skill.fitted + share * (fitted - skill.fitted), skill.fitted),
        skill.error + share * (error - skill.error),
    )
    result: Skill = select(usable, new, skill)
    return result


def lower(skill: Skill) -> Any:
    """Lower bound of the mean skill; -1 before there were enough windows."""
    xp = namespace(skill.mean)
    count = cast(_clip(skill.windows, FIRST, MEMORY), skill.mean.dtype)
    between = xp.sqrt(skill.square * count / (count - 1.0))
    least = 1.5 * math.sqrt(3.0) * skill.chance
    error = 2.0 * xp.maximum(_clip(between, RESOLUTION, math.inf), least) / xp.sqrt(count)
    return xp.where(skill.windows >= FIRST, skill.mean - error, -xp.ones_like(skill.mean))


def enough(skill: Skill) -> Any:
    """Whether predicted steps may be made, 0-dim bool."""
    return (lower(skill) > 0.0) & (skill.length >= SHORTEST)


def fit(
    predictor: FittedPredictor, factors: Any, sums: Any, reading: Reading
) -> tuple[Any, Any, Any]:
    """New coefficients and sums, and the squared length of the next forecast.

    They change where a full window with a drift and finite numbers was read.
    """
    xp = namespace(factors)
    directions, targets = reading.gram[:, 2:, 2:], reading.gram[:, 0, 2:] / reading.steps
    first = xp.sum(directions[:, 0, 0])
    both = xp.concat([directions, targets[:, :, None]], axis=2) / xp.where(first > 0, first, 1.0)
    new = predictor.memory * sums + both
    total = xp.sum(new, axis=0, keepdims=True)
    pooled = _solve(total, xp.zeros_like(factors[:1, :]), 1e-6)
    own = _solve(new, pooled, predictor.ridge)
    gram = new[:, :, :-1]
    square = xp.sum(own * xp.sum(gram * own[:, None, :], axis=2), axis=1)
    limit = gram[:, 0, 0]
    scale = xp.where(square > limit, xp.sqrt(_nonnegative(_ratio(limit, square))), 1.0)
    good = reading.full & (first > 0) & xp.all(xp.isfinite(reading.gram))
    found, sums = xp.where(good, own * scale[:, None], factors), xp.where(good, new, sums)
    made = xp.sum(found[:, :, None] * directions * found[:, None, :])
    return found, sums, made


def _solve(sums: Any, centre: Any, ridge: float) -> Any:
    """Least squares drawn towards a centre, of T tensors, in units of the directions' lengths."""
    xp = namespace(sums)
    gram, target = sums[:, :, :-1], sums[:, :, -1]
    count = gram.shape[-1]
    eye = xp.asarray(np.eye(count), dtype=gram.dtype, **beside([gram]))
    lengths = xp.sum(gram * eye, axis=2)
    wanted = target + ridge * lengths * centre
    if count == 1:
        return _ratio(wanted, (1.0 + ridge) * lengths)
    finite = xp.where(xp.isfinite(gram), gram, xp.zeros_like(gram))
    inverse = xp.linalg.pinv(finite + ridge * lengths[:, :, None] * eye, rtol=1e-8)
    return xp.sum(inverse * wanted[:, None, :], axis=2)


def _ratio(above: Any, below: Any) -> Any:
    """A quotient; 0 where the divisor is not above 0."""
    xp = namespace(below)
    positive = below > 0
    return xp.where(positive, above / xp.where(positive, below, xp.ones_like(below)), 0.0 * below)


def _nonnegative(number: Any) -> Any:
    return namespace(number).where(number > 0, number, 0.0 * number)


def _clip(number: Any, least: float, most: float) -> Any:
    xp = namespace(number)
    above = xp.where(number < least, xp.full_like(number, least), number)
    return above if most == math.inf else xp.where(above > most, xp.full_like(above, most), above)
