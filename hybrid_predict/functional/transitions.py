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
class History(NamedTuple):
    """What forecasts are made of, and the window that compares them."""

    drift: Any  # average of displacements per unit of the learning rate
    # On a sample of at most 65,536 entries:
    moved: Any  # sum of the displacements since the window was opened
    forecast: Any  # the forecast of length 1 then
    before: Any  # that of the window before
    square: Any  # squared length of the drift then, 0-dim


@final
class Tensor(NamedTuple):
    """What is known of one array."""

    average: Any  # of its gradients
    memory: Memory | None  # None if it is not corrected
    history: History | None  # None if it is not predicted


@final
class Numbers(NamedTuple):
    """Numbers of a full step."""

    rates: Arrays  # learning rates, by name
    shrinks: Arrays  # fractions that decoupled weight decay has removed, by name
    factors: Arrays  # drifts by which predicted steps have moved arrays, by name
    fall: Any  # largest learning rate so far over the present one
    updates: Any  # number of updates before
    active: Any  # whether updates are corrected
    newest: Any = 0.0  # least share of this displacement in the drift; 0 learns nothing


def start(plans: Plans, weights: Arrays) -> dict[str, Tensor]:
    """Return what is known before the first full step."""

    def tensor(plan: Plan, x: Any) -> Tensor:
        xp = array_library(x)
        dtype = wide_dtype(x)
        kept = kernels.average_dtype(x, plans.history)
        memory = history = None
        if plan.update is not None and plans.period is not None:
            side = min(plan.shape)
            roots = 2 if side <= plan.update.longest else 0
            moments = [xp.zeros(size, dtype=dtype) for size in (sum(plan.shape), plan.shape[0])]
            memory = Memory(*moments, *(xp.zeros((side, side), dtype=kept) for _ in range(roots)))
        if plan.predictor is not None:
            moved, forecast, before = (xp.zeros_like(_sampled(x)) for _ in range(3))
            drift = xp.zeros_like(x, dtype=kept)
            square = xp.zeros((), dtype=dtype)
            history = History(drift, moved, forecast, before, square)
        return Tensor(xp.zeros_like(x, dtype=kept), memory, history)

    return {plan.name: tensor(plan, weights[plan.name]) for plan in plans.arrays}


@compiled
def move(plans: Plans, weights: Arrays, drifts: Arrays, factors: Arrays) -> tuple[Any, Any]:
    """Move weights by multiples of their drifts; return them, and whether these were finite."""
    moved: dict[str, Any] = {}
    finite: Any = True
    for name, drift in drifts.items():
        change = factors[name] * wide(drift)
        finite = finite & array_library(change).isfinite(change).all()
        moved[name] = (wide(weights[name]) + change).astype(weights[name].dtype)
    return moved, finite


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
    """Advance one array."""
    xp, update, (_, memory, history) = array_library(gradient), plan.update, known
    rate, shrink = (xp.asarray(x[plan.name], wide_dtype(gradient)) for x in own[:2])
    gradient = xp.where(rate < 0, -gradient, gradient)  # an update goes against it
    usable = xp.isfinite(norm(gradient))
    newest = xp.where(usable, gradient, known.average.astype(gradient.dtype))
    average = kernels.average(known.average, newest, update.decay if update else AVERAGE)
    # Many rows of an embedding have no gradient in any batch.
    frozen = plan.kind != "embedding" and _unmoved(gradient, before, after, shrink)
    still = (average == 0) | ~usable | frozen
    weight = after
    if update is not None and memory is not None and plans.period is not None:
        keep = 1.0 - update.newest * (1.0 + kernels.cosine(gradient, known.average))
        mixed = kernels.blend(average, newest, keep)

        def corrected(memory: Memory = memory) -> tuple[Any, Memory]:
            direction, new = _direction(plans, memory, mixed, own.updates)
            moved = _moved(plans, plan, direction, average, before, after, shrink, own.fall)
            return xp.where(still, after, moved), new

        due = own.active & (own.updates % plans.period == plan.turn)
        weight, memory = kernels.when(due, corrected, (after, memory))
    if plan.predictor is None or history is None:
        return weight, Tensor(average, memory, None), None
    change = (wide(weight) - wide(before)) / xp.where(rate != 0, rate, 1.0)
    # A displacement by a gradient that is not finite would stay in the drift.
    change = xp.where(~still & (rate != 0), change, 0.0).astype(gradient.dtype)
    drift = history.drift
    factor = own.factors[plan.name]
    forecast = factor * dot(average, drift), factor**2 * dot(drift, drift)
    made = rate * dot(average, change), rate**2 * dot(change, change)
    slopes = xp.stack([*forecast, *made, factor * dot(gradient, drift)])
    share = xp.maximum(own.newest, (own.newest > 0) * (1.0 - plan.predictor.decay))
    drift = kernels.average(drift, change, 1.0 - share)
    # Otherwise forecasts would continue to move entries that are frozen now.
    drift = xp.where(frozen & (share > 0), xp.zeros_like(drift), drift)
    history = history._replace(drift=drift, moved=history.moved + _sampled(change))
    return weight, Tensor(average, memory, history), slopes


def _unmoved(gradient: Any, before: Any, after: Any, shrink: Any) -> Any:
    """Mask of the entries without a gradient that have not moved, but for weight decay."""
    rest = (before * (1.0 - shrink)).astype(after.dtype)
    rounding = array_library(after).where(shrink > 0, ROUNDING, 0.0) * abs(wide(rest))
    off = (abs(wide(after) - wide(rest)) - rounding).clip(0.0) ** 2
    moved = gradient != 0
    return ~moved & (off <= COASTING**2 * (off * moved).sum() / moved.sum().clip(1))


def _direction(plans: Plans, memory: Memory, mixed: Any, updates: Any) -> tuple[Any, Memory]:
    """The direction of length one, and what is known about the matrix afterwards."""
    xp = array_library(mixed)
    last = plans.outputs_last
    rows = memory.levels.shape[0]
    form = mixed.shape[-1:] + mixed.shape[:-1] if last else mixed.shape
    matrix = (xp.moveaxis(mixed, -1, 0) if last else mixed).reshape(rows, -1)
    matrix = matrix / kernels.peak(matrix)
    squares = matrix * matrix
    shares = xp.concatenate((squares.sum(1), squares.sum(0))) / kernels.positive(squares.sum())
    energies = kernels.blend(memory.energies, shares, MOMENT_DECAY)
    sides = [side / kernels.positive(side.mean()) for side in (energies[:rows], energies[rows:])]
    scales = [side.clip(1.0 / MOST_ENERGY, MOST_ENERGY) ** -0.25 for side in sides]
    tall = matrix.shape[0] > matrix.shape[1]
    if memory.root is not None:  # in place of the scales of the shorter side
        memory = _seen(plans, memory, matrix, updates)
        scales[tall] = xp.ones_like(scales[tall])
    before = scales[0][:, None]
    after = scales[1]
    matrix = before * matrix * after
    wide_matrix = matrix.T if tall else matrix
    if memory.root is not None:
        wide_matrix = memory.root.astype(matrix.dtype) @ wide_matrix
    factor = kernels.orthogonal(wide_matrix)
    factor = factor.T if tall else factor
    levels = kernels.blend(memory.levels, (factor * factor).mean(1), MOMENT_DECAY)
    levelled = kernels.unit(factor / xp.sqrt(kernels.positive(levels))[:, None])
    found = -kernels.unit(before * levelled * after).reshape(form)
    new = memory._replace(energies=energies, levels=levels)
    return xp.moveaxis(found, 0, -1) if last else found, new


def _seen(plans: Plans, memory: Memory, matrix: Any, updates: Any) -> Memory:
    """Take a matrix into its covariance and the root of that, if it is its turn."""
    period = plans.period or 1
    done = updates // period
    every = seen_every(period)

    def made() -> Memory:
        rows = kernels.unit(matrix)
        rows = rows.T if rows.shape[0] > rows.shape[1] else rows
        decay = COVARIANCE_DECAY ** (every * period)
        covariance = kernels.average(memory.covariance, rows @ rows.T, decay)
        return memory._replace(covariance=covariance, root=kernels.inverse_root(covariance))

    found: Memory = kernels.when((done < EARLY) | (done % every == 0), made, memory)
    return found


def _moved(
    plans: Plans,
    plan: Plan,
    direction: Any,
    mean: Any,
    before: Any,
    after: Any,
    shrink: Any,
    fall: Any,
) -> Any:
    """Weights after the corrected update; the optimizer's own where a length is not finite."""
    rule = plan.update
    period = plans.period
    xp = array_library(direction)
    kept = 1.0 - shrink
    assert rule is not None and period is not None
    update = wide(after) - kept * wide(before)
    length = norm(update)
    slope = dot(mean, direction)
    usable = (length > 0) & xp.isfinite(length) & xp.isfinite(slope)
    usual = length / usual_length(plan.shape[0]) * fall
    size = lengths(xp, length, usual, dot(mean, update), slope, rule.bound, period)
    mixed = rule.share * size * direction + rule.share * kept * before
    mixed = mixed + (1.0 - rule.share) * after if rule.share < 1.0 else mixed
    return xp.where(usable, mixed.astype(after.dtype), after)


@compiled
def turn(plans: Plans, known: Mapping[str, Tensor], steps: Any) -> tuple[Any, dict[str, History]]:
    """Close windows of so many displacements, and open the next ones.

    Return a row of sums for each predicted array, see `policy.confidence.Window`, and histories.
    """
    rows = []
    opened = {}
    for plan in plans.predicted:
        history = known[plan.name].history
        assert history is not None
        drift, moved, forecast, before, square = history
        xp = array_library(moved)
        share = drift.size / moved.size
        mean = moved / steps
        product = mean * forecast
        squares = dot(mean, mean), dot(forecast, forecast), square, share * dot(product, product)
        rows.append(share * xp.stack([product.sum(), *squares, dot(mean, before)]))
        sample = _sampled(drift)
        now = plan.length * sample
        opened[plan.name] = History(drift, xp.zeros_like(moved), now, forecast, dot(sample, sample))
    return array_library(*rows).stack(rows), opened


def _sampled(array: Any) -> Any:
    """The entries of an array that are compared, in at least 32 bits."""
    flat = array.reshape(-1)
    places = _places(array.size)
    return wide(flat if places is None else flat[places])


@lru_cache(maxsize=256)
def _places(size: int) -> Any:
    """Places of the sampled entries, the same for all arrays of a size; None for all entries."""
    return None if size <= SAMPLE else np.random.default_rng(size).integers(size, size=SAMPLE)
