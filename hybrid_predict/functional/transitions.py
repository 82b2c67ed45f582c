"""What is known of each array, and how a full step changes it: functions that JAX compiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.functional import kernels
from hybrid_predict.functional.kernels import array_library, compiled, dot, norm, wide, wide_dtype
from hybrid_predict.functional.plan import Plan, Plans
from hybrid_predict.policy.confidence import SAMPLE
from hybrid_predict.tensors.polynomials import MOMENT_DECAY, MOST_ENERGY
from hybrid_predict.updates.base import AVERAGE, COASTING, ROUNDING
from hybrid_predict.updates.length import lengths, usual_length
from hybrid_predict.updates.spectral import COVARIANCE_DECAY, EARLY, seen_every

Arrays = Mapping[str, Any]


@final
class Memory(NamedTuple):
    """Memory of the corrected updates of a matrix."""

    energies: Any  # shares of rows and columns, shape (rows + columns,)
    levels: Any  # second moments of the rows of factors, shape (rows,)
    covariance: Any = None  # of the shorter side; None if it is too long
    root: Any = None  # its inverse square root


@final
class Tensor(NamedTuple):
    """What is known of one array."""

    average: Any  # of its gradients
    memory: Memory | None = None  # None if it is not corrected
    # None if it is not predicted:
    drift: Any = None  # average of displacements per unit of the learning rate
    # On a sample of at most 65,536 entries:
    moved: Any = None  # sum of the displacements since the window was opened
    forecast: Any = None  # the forecast of length 1 then
    before: Any = None  # that of the window before
    square: Any = None  # squared length of the drift then, 0-dim


@final
class Numbers(NamedTuple):
    """Numbers of a full step."""

    rate: Any  # learning rate, at least 0
    shrinks: Arrays  # fractions that decoupled weight decay has removed, by name
    factors: Arrays  # drifts by which predicted steps have moved arrays, by name
    fall: Any  # largest learning rate so far over the present one
    updates: Any  # number of updates before
    active: Any  # whether updates are corrected
    newest: Any = 0.0  # least share of this displacement in the drift; 0 learns nothing


def start(plans: Plans, weights: Arrays) -> dict[str, Tensor]:
    """Return what is known before the first full step."""
    return {plan.name: _started(plan, weights[plan.name]) for plan in plans.arrays}


def _started(plan: Plan, x: Any) -> Tensor:
    xp = array_library(x)
    dtype = wide_dtype(x)
    found = Tensor(xp.zeros_like(x, dtype=dtype))
    if plan.update is not None:
        side = min(plan.shape)
        forms: list[tuple[int, ...]] = [(sum(plan.shape),), (plan.shape[0],)]
        forms += [(side, side)] * 2 if side <= plan.update.longest else []
        found = found._replace(memory=Memory(*(xp.zeros(form, dtype=dtype) for form in forms)))
    if plan.predictor is not None:
        samples = {name: xp.zeros_like(_sampled(x)) for name in ("moved", "forecast", "before")}
        drift = xp.zeros_like(x, dtype=dtype)
        found = found._replace(drift=drift, square=xp.zeros((), dtype=dtype), **samples)
    return found


@compiled
def move(plans: Plans, weights: Arrays, drifts: Arrays, factors: Arrays) -> dict[str, Any]:
    """Move weights by multiples of their drifts."""
    moved = {name: wide(x) + factors[name] * wide(drifts[name]) for name, x in weights.items()}
    return {name: x.astype(weights[name].dtype) for name, x in moved.items()}


@compiled
def total_norm(plans: Plans, gradients: Arrays) -> Any:
    """Return the norm of all gradients."""
    norms = [norm(gradient) for gradient in gradients.values()]
    return norm(array_library(*norms).stack(norms))


@compiled
def advance(
    plans: Plans,
    known: Mapping[str, Tensor],
    gradients: Arrays,
    before: Arrays,
    after: Arrays,
    numbers: Numbers,
) -> tuple[dict[str, Any], dict[str, Tensor], Any]:
    """Correct the optimizer's update, which led from weights before to those after, and learn.

    Return weights, what is known now, and a row of numbers for each predicted array: the four
    `Slopes`, and the slope of predicted steps where they end.
    """
    weights = {}
    new = {}
    slopes = []
    for plan in plans.arrays:
        name = plan.name
        each = known[name], gradients[name], before[name], after[name]
        weights[name], new[name], row = _advanced(plans, plan, *each, numbers)
        slopes += [] if row is None else [row]
    return weights, new, array_library(*slopes).stack(slopes) if slopes else None


def _advanced(
    plans: Plans, plan: Plan, known: Tensor, gradient: Any, before: Any, after: Any, own: Numbers
) -> tuple[Any, Tensor, Any]:
    xp = array_library(gradient)
    rule = plan.update
    rate = xp.asarray(own.rate, wide_dtype(gradient))
    shrink = xp.asarray(own.shrinks[plan.name], wide_dtype(gradient))
    rest = (1.0 - shrink) * wide(before)
    usable = xp.isfinite(norm(gradient))
    newest = xp.where(usable, gradient, known.average.astype(gradient.dtype))
    average = kernels.average(known.average, newest, rule.decay if rule else AVERAGE)
    # Many rows of an embedding have no gradient in any batch.
    frozen = plan.kind != "embedding" and _unmoved(gradient, rest, after, shrink)
    still = (average == 0) | ~usable | frozen
    weight = after
    memory = known.memory
    if rule is not None:
        share = rule.newest * (1.0 + kernels.cosine(gradient, known.average))

        def corrected() -> tuple[Any, Any]:
            mixed = kernels.average(average, newest, 1.0 - share)
            direction, new = _direction(plans, known.memory, mixed, own.updates)
            moved = _moved(plans, plan, direction, average, rest, after, own.fall)
            return xp.where(still, after, moved), new

        due = own.active & (own.updates % plans.period == plan.turn)
        weight, memory = kernels.when(due, corrected, (after, memory))
    known = known._replace(average=average, memory=memory)
    if plan.predictor is None:
        return weight, known, None
    change = (wide(weight) - wide(before)) / xp.where(rate > 0, rate, 1.0)
    # A displacement by a gradient that is not finite would stay in the drift.
    change = xp.where(~still & (rate > 0), change, 0.0).astype(gradient.dtype)
    drift = known.drift
    factor = own.factors[plan.name]
    forecast = factor * dot(average, drift), factor**2 * dot(drift, drift)
    made = rate * dot(average, change), rate**2 * dot(change, change)
    slopes = xp.stack([*forecast, *made, factor * dot(gradient, drift)])
    share = xp.maximum(own.newest, (own.newest > 0) * (1.0 - plan.predictor.decay))
    drift = kernels.average(drift, change, 1.0 - share)
    # Otherwise forecasts would continue to move entries that are frozen now.
    drift = xp.where(frozen & (share > 0), 0.0, drift)
    return weight, known._replace(drift=drift, moved=known.moved + _sampled(change)), slopes


def _unmoved(gradient: Any, rest: Any, after: Any, shrink: Any) -> Any:
    """Mask of the entries without a gradient that have not moved, but for weight decay."""
    rest = wide(rest.astype(after.dtype))
    rounding = array_library(after).where(shrink > 0, ROUNDING, 0.0) * abs(rest)
    off = (abs(wide(after) - rest) - rounding).clip(0.0) ** 2
    moved = gradient != 0
    return ~moved & (off <= COASTING**2 * (off * moved).sum() / moved.sum().clip(1))


def _direction(plans: Plans, memory: Any, mixed: Any, updates: Any) -> tuple[Any, Memory]:
    xp = array_library(mixed)
    rows = memory.levels.shape[0]
    outputs_first = xp.moveaxis(mixed, -1, 0) if plans.outputs_last else mixed
    matrix = outputs_first.reshape(rows, -1)
    matrix = matrix / kernels.peak(matrix)
    squares = matrix * matrix
    shares = xp.concatenate((squares.sum(1), squares.sum(0))) / kernels.positive(squares.sum())
    energies = kernels.average(memory.energies, shares, MOMENT_DECAY)
    sides = [side / kernels.positive(side.mean()) for side in (energies[:rows], energies[rows:])]
    scales = [side.clip(1.0 / MOST_ENERGY, MOST_ENERGY) ** -0.25 for side in sides]
    tall = matrix.shape[0] > matrix.shape[1]
    if memory.root is not None:  # in place of the scales of the shorter side
        memory = _seen(plans, memory, matrix, updates)
        scales[tall] = xp.ones_like(scales[tall])
    height = scales[0][:, None]
    width = scales[1]
    matrix = height * matrix * width
    matrix = matrix.T if tall else matrix
    factor = kernels.orthogonal(matrix if memory.root is None else memory.root @ matrix)
    factor = factor.T if tall else factor
    levels = kernels.average(memory.levels, (factor * factor).mean(1), MOMENT_DECAY)
    levelled = kernels.unit(factor / xp.sqrt(kernels.positive(levels))[:, None])
    found = -kernels.unit(height * levelled * width).reshape(outputs_first.shape)
    new = memory._replace(energies=energies, levels=levels)
    return xp.moveaxis(found, 0, -1) if plans.outputs_last else found, new


def _seen(plans: Plans, memory: Memory, matrix: Any, updates: Any) -> Memory:
    """Take a matrix into its covariance and the root of that, if it is its turn."""
    done = updates // plans.period
    every = seen_every(plans.period)

    def made() -> Memory:
        rows = kernels.unit(matrix)
        rows = rows.T if rows.shape[0] > rows.shape[1] else rows
        decay = COVARIANCE_DECAY ** (every * plans.period)
        covariance = kernels.average(memory.covariance, rows @ rows.T, decay)
        return memory._replace(covariance=covariance, root=kernels.inverse_root(covariance))

    found: Memory = kernels.when((done < EARLY) | (done % every == 0), made, memory)
    return found


def _moved(
    plans: Plans, plan: Plan, direction: Any, mean: Any, rest: Any, after: Any, fall: Any
) -> Any:
    rule: Any = plan.update
    xp = array_library(direction)
    update = wide(after) - rest
    length = norm(update)
    slope = dot(mean, direction)
    usable = (length > 0) & xp.isfinite(length) & xp.isfinite(slope)
    relative = length / usual_length(plan.shape[0]) * fall
    size = lengths(xp, length, relative, dot(mean, update), slope, rule.bound, plans.period)
    mixed = rule.share * (size * direction + rest)
    mixed = mixed + (1.0 - rule.share) * after if rule.share < 1.0 else mixed
    return xp.where(usable, mixed.astype(after.dtype), after)


@compiled
def turn(plans: Plans, known: Mapping[str, Tensor], steps: Any) -> tuple[Any, dict[str, Tensor]]:
    """Close windows of so many displacements, and open the next ones.

    Return a row of sums for each predicted array, see `policy.confidence.Window`, and what is known
    of all arrays now.
    """
    rows = []
    opened = dict(known)
    for plan in plans.predicted:
        own = known[plan.name]
        xp = array_library(own.moved)
        share = own.drift.size / own.moved.size
        mean = own.moved / steps
        product = mean * own.forecast
        squares = dot(mean, mean), dot(own.forecast, own.forecast), own.square
        chance = share * dot(product, product)
        rows.append(share * xp.stack([product.sum(), *squares, chance, dot(mean, own.before)]))
        sample = _sampled(own.drift)
        opened[plan.name] = own._replace(
            moved=xp.zeros_like(own.moved),
            forecast=plan.length * sample,
            before=own.forecast,
            square=dot(sample, sample),
        )
    return array_library(*rows).stack(rows), opened


def _sampled(array: Any) -> Any:
    return wide(array.reshape(-1)[_places(array.size)])


@lru_cache(maxsize=256)
def _places(size: int) -> Any:
    if size <= SAMPLE:
        return slice(None)
    return np.random.default_rng(size).integers(size, size=SAMPLE)
