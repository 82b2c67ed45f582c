"""Corrected updates of one group, as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from hybrid_predict.functional import kernels
from hybrid_predict.functional.kernels import norm, wide, wide_dtype
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Group, Memory
from hybrid_predict.rules.numbers import COASTING, ROUNDING, array_library
from hybrid_predict.rules.verdict import AVERAGE
from hybrid_predict.tensors.polynomials import MOMENT_DECAY
from hybrid_predict.updates.length import lengths, usual_length
from hybrid_predict.updates.spectral import COVARIANCE_DECAY, EARLY, seen_every

Arrays = Mapping[str, Any]


@final
class Update(NamedTuple):
    """The optimizer's update of one full step; mappings are by name."""

    gradients: Arrays
    before: Arrays  # weights right before it
    after: Arrays  # weights right after it
    rates: Arrays  # learning rates, 0-dim
    shrinks: Arrays  # fractions that decoupled weight decay has removed, 0-dim
    active: Any  # whether updates are corrected now, 0-dim bool; averages move on anyway
    outputs_last: bool  # whether matrices are of shape (inputs, outputs)
    history: str  # type in which averages are stored


@final
class Moved(NamedTuple):
    """A group after the corrected update; mappings are by name."""

    weights: dict[str, Any]
    group: Group  # with its new averages
    still: dict[str, Any]  # masks of the entries that only the optimizer moves
    frozen: dict[str, Any]  # those that stand still for now, or False


def start(plan: Plan, like: Arrays, history: str) -> dict[str, Memory]:
    """Return the memory of a group's corrected updates before the first one, by name."""

    def memory(name: str, rows: int, columns: int) -> Memory:
        x, side = like[name], min(rows, columns)
        xp, dtype, kept = array_library(x), wide_dtype(x), kernels.average_dtype(x, history)
        moments = xp.zeros(rows + columns, dtype=dtype), xp.zeros(rows, dtype=dtype)
        squares = [xp.zeros((side, side), dtype=kept) for _ in range(2 * (side <= plan.longest))]
        return Memory(*moments, xp.zeros((), dtype=xp.int32), *squares)

    return {name: memory(name, *shape) for name, shape in plan.shapes.items()}


def corrected(plan: Plan, group: Group, update: Update) -> Moved:
    """Correct the update of a group."""
    average, newest, cosines, still, frozen = {}, {}, {}, {}, {}
    peaks = {}
    decay = plan.update.decay if plan.update else AVERAGE
    for name in plan.shapes:
        gradient, mean, rate = update.gradients[name], group.average[name], update.rates[name]
        xp = array_library(gradient)
        gradient = xp.where(rate < 0, -gradient, gradient)  # an update goes against it
        peaks[name] = xp.maximum(group.peaks[name], abs(rate))
        usable = xp.isfinite(norm(gradient))
        newest[name] = xp.where(usable, gradient, mean.astype(gradient.dtype))
        cosines[name] = kernels.cosine(gradient, mean)
        average[name] = kernels.average(mean, newest[name], decay, update.history)
        # Many rows of an embedding have no gradient in any batch.
        frozen[name] = plan.kind != "embedding" and _unmoved(name, update)
        still[name] = (average[name] == 0) | ~usable | frozen[name]
    weights = {name: update.after[name] for name in plan.shapes}
    if plan.update is not None and plan.period is not None and group.corrections is not None:
        memories = dict(group.corrections)
        turns = dict(zip(plan.shapes, plan.turns or [0] * len(plan.shapes), strict=True))
        for name, mean in average.items():
            keep = 1.0 - plan.update.newest * (1.0 + cosines[name])
            mixed = kernels.blend(mean, newest[name], keep)
            due = update.active & (group.seen % plan.period == turns[name])

            def made(name: str = name, mean: Any = mean, mixed: Any = mixed) -> tuple[Any, Any]:
                direction, new = _direction(plan, memories[name], mixed, update)
                peak = peaks[name]
                return _moved(plan, name, direction, mean, still[name], peak, update), new

            before = weights[name], memories[name]
            weights[name], memories[name] = kernels.when(due, made, before)
        group = group._replace(corrections=memories)
    group = group._replace(average=average, seen=group.seen + 1, peaks=peaks)
    return Moved(weights, group, still, frozen)


def _unmoved(name: str, update: Update) -> Any:
    """Mask of the entries without a gradient that have not moved, but for weight decay."""
    shrink, after = update.shrinks[name], update.after[name]
    rest = (update.before[name] * (1.0 - shrink)).astype(after.dtype)
    rounding = array_library(after).where(shrink > 0, ROUNDING, 0.0) * abs(wide(rest))
    off = abs(wide(after) - wide(rest)) - rounding
    off = (off.clip(0.0)) ** 2
    moved = update.gradients[name] != 0
    return ~moved & (off <= COASTING**2 * (off * moved).sum() / moved.sum().clip(1))


def _matrix(array: Any, outputs_last: bool) -> Any:
    """An array as a matrix of shape (outputs, rest)."""
    array = array_library(array).moveaxis(array, -1, 0) if outputs_last else array
    return array.reshape(array.shape[0], -1)


def _direction(plan: Plan, memory: Memory, mixed: Any, update: Update) -> tuple[Any, Memory]:
    """The direction of length one, and what is known about the matrix afterwards."""
    assert plan.update is not None and plan.period is not None
    xp, last, rows = array_library(mixed), update.outputs_last, memory.levels.shape[0]
    matrix = _matrix(mixed, last)
    matrix = matrix / kernels.peak(matrix)
    energies = kernels.blend(memory.energies, kernels.energies(matrix), MOMENT_DECAY)
    scales = list(kernels.scales(energies, rows))
    tall = matrix.shape[0] > matrix.shape[1]
    if memory.root is not None:  # in place of the scales of the shorter side
        memory = _seen(memory, matrix, plan.period, update.history)
        scales[tall] = xp.ones_like(scales[tall])
    before, after = (scale if axis else scale[:, None] for axis, scale in enumerate(scales))
    matrix = before * matrix * after
    wide_matrix = matrix.T if tall else matrix
    if memory.root is not None:
        wide_matrix = memory.root.astype(matrix.dtype) @ wide_matrix
    factor = kernels.orthogonal(wide_matrix)
    factor = factor.T if tall else factor
    levels = kernels.blend(memory.levels, (factor * factor).mean(1), MOMENT_DECAY)
    unit = -kernels.unit(before * kernels.levelled(factor, levels) * after)
    if last:
        unit = xp.moveaxis(unit.reshape(mixed.shape[-1:] + mixed.shape[:-1]), 0, -1)
    new = memory._replace(energies=energies, levels=levels, steps=memory.steps + 1)
    return unit.reshape(mixed.shape), new


def _seen(memory: Memory, matrix: Any, period: int, history: str) -> Memory:
    """Take a matrix into its covariance and the root of that, if it is its turn."""
    every = seen_every(period)
    due = (memory.steps < EARLY) | (memory.steps % every == 0)

    def made() -> tuple[Any, Any]:
        rows = kernels.unit(matrix)
        rows = rows.T if rows.shape[0] > rows.shape[1] else rows
        decay = COVARIANCE_DECAY ** (every * period)
        covariance = kernels.average(memory.covariance, rows @ rows.T, decay, history)
        return covariance, kernels.inverse_root(covariance, history)

    covariance, root = kernels.when(due, made, (memory.covariance, memory.root))
    return memory._replace(covariance=covariance, root=root)


def _moved(
    plan: Plan, name: str, direction: Any, mean: Any, still: Any, peak: Any, update: Update
) -> Any:
    """Weights after the corrected update; the optimizer's own where it is not corrected."""
    rule, before, after = plan.update, update.before[name], update.after[name]
    assert rule is not None and plan.period is not None
    xp, kept = array_library(direction), 1.0 - update.shrinks[name]
    own = wide(after) - kept * wide(before)
    length, slope = norm(own), kernels.dot(mean, direction)
    usable = (length > 0) & xp.isfinite(length) & xp.isfinite(slope)
    rate, along = abs(update.rates[name]), kernels.dot(mean, own)
    usual = length / usual_length(plan.shapes[name][0]) * peak / xp.where(rate > 0, rate, xp.inf)
    size = lengths(xp, length, usual, along, slope, rule.bound, plan.period)
    mixed = rule.share * size * direction + rule.share * kept * before
    mixed = mixed + (1.0 - rule.share) * after if rule.share < 1.0 else mixed
    return xp.where(still | ~usable, after, mixed.astype(after.dtype))
