"""Corrected updates of one group, as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from hybrid_predict.functional import kernels
from hybrid_predict.functional.kernels import norm, wide, wide_dtype
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Correction, Group
from hybrid_predict.rules.length import longest_update, magnification, stretch
from hybrid_predict.rules.numbers import COASTING, ROUNDING, array_library, select
from hybrid_predict.rules.polynomials import MOMENT_DECAY
from hybrid_predict.rules.verdict import AVERAGE
from hybrid_predict.updates import SpectralUpdate
from hybrid_predict.updates.whitened import COVARIANCE_DECAY, EARLY, ROOTS_EVERY, SEEN_EVERY

Arrays = Mapping[str, Any]


@final
class Update(NamedTuple):
    """The optimizer's update of one full step; mappings are by name."""

    gradients: Arrays
    before: Arrays  # weights right before it
    after: Arrays  # weights right after it
    rates: Arrays  # learning rates, 0-dim
    shrinks: Arrays  # fractions that decoupled weight decay has removed, 0-dim
    bound: Any  # how much longer than this update a corrected one is at most, 0-dim
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


def start(plan: Plan, like: Arrays, history: str) -> Correction:
    """Return the memory of a group's corrected updates before the first one."""
    xp, dtype = array_library(*like.values()), wide_dtype(*like.values())

    def squares(axis: int, scale: float) -> dict[str, Any]:
        sides = {n: shape[axis] for n, shape in plan.shapes.items() if shape[axis] <= plan.longest}
        dtypes = {n: kernels.average_dtype(like[n], history) for n in sides}
        return {n: scale * xp.eye(side, dtype=dtypes[n]) for n, side in sides.items()}

    energies = {
        n: xp.zeros(sum(shape), dtype=wide_dtype(like[n])) for n, shape in plan.shapes.items()
    }
    levels = {n: xp.zeros(m, dtype=wide_dtype(like[n])) for n, (m, _) in plan.shapes.items()}
    longest, steps = xp.zeros((), dtype=dtype), xp.zeros((), dtype=xp.int32)
    covariances, roots = ((squares(0, scale), squares(1, scale)) for scale in (0.0, 1.0))
    return Correction(energies, levels, longest, steps, covariances, roots)


def corrected(plan: Plan, group: Group, update: Update) -> Moved:
    """Correct the update of a group."""
    average, newest, cosines, still, frozen = {}, {}, {}, {}, {}
    decay = plan.update.decay if plan.update else AVERAGE
    for name in plan.shapes:
        gradient, mean, rate = update.gradients[name], group.average[name], update.rates[name]
        xp = array_library(gradient)
        gradient = xp.where(rate < 0, -gradient, gradient)  # an update goes against it
        usable = xp.isfinite(norm(gradient))
        newest[name] = xp.where(usable, gradient, mean.astype(gradient.dtype))
        cosines[name] = kernels.cosine(gradient, mean)
        average[name] = kernels.average(mean, newest[name], decay, update.history)
        # Many rows of an embedding have no gradient in any batch.
        frozen[name] = plan.kind != "embedding" and _unmoved(name, update)
        still[name] = (average[name] == 0) | ~usable | frozen[name]
    weights = {name: update.after[name] for name in plan.shapes}
    memory = group.correction
    if plan.update is not None and memory is not None:
        new = _whitened(memory, newest, update)
        directions, energies, levels = {}, {}, {}
        for name, mean in average.items():
            keep = 1.0 - plan.update.newest * (1.0 + cosines[name])
            mixed = kernels.blend(mean, newest[name], keep)
            found = _direction(plan, new, name, mixed, update)
            directions[name], energies[name], levels[name] = found
        lengths, longest = _lengths(plan, memory.longest, update)
        weights = _moved(plan.update, directions, lengths, still, update)
        new = new._replace(energies=energies, levels=levels, longest=longest, steps=new.steps + 1)
        group = group._replace(correction=select(update.active, new, memory))
    return Moved(weights, group._replace(average=average), still, frozen)


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


def _whitened(memory: Correction, newest: Arrays, update: Update) -> Correction:
    """New covariances and roots, if it is their turn."""
    if not any(memory.covariances):
        return memory
    history, decay = update.history, COVARIANCE_DECAY**SEEN_EVERY
    seen, due = (
        (memory.steps < EARLY) | (memory.steps % every == 0) for every in (SEEN_EVERY, ROOTS_EVERY)
    )

    def averaged(axis: int) -> dict[str, Any]:
        means = {}
        for name, mean in memory.covariances[axis].items():
            rows = kernels.unit(wide(_matrix(newest[name], update.outputs_last)))
            rows = rows.T if axis else rows
            means[name] = kernels.average(mean, rows @ rows.T, decay, history)
        return means

    def rooted(means: Arrays) -> dict[str, Any]:
        return {name: kernels.inverse_fourth_root(x, history) for name, x in means.items()}

    covariances = kernels.when(seen, lambda: (averaged(0), averaged(1)), memory.covariances)
    roots = kernels.when(due, lambda: tuple(map(rooted, covariances)), memory.roots)
    return memory._replace(covariances=covariances, roots=roots)


def _direction(
    plan: Plan, memory: Correction, name: str, mixed: Any, update: Update
) -> tuple[Any, Any, Any]:
    """The direction of length one; new energies of the matrix; new levels of its factor."""
    assert plan.update is not None
    xp, last = array_library(mixed), update.outputs_last
    matrix, (left, right) = _matrix(mixed, last), (roots.get(name) for roots in memory.roots)
    energies, scales = memory.energies[name], (1.0, 1.0)
    if left is None or right is None:
        matrix = matrix / kernels.peak(matrix)
        energies = kernels.blend(energies, kernels.energies(matrix), MOMENT_DECAY)
        rows, columns = kernels.scales(energies, matrix.shape[0])
        scales = (rows[:, None] if left is None else 1.0, columns if right is None else 1.0)
        matrix = scales[0] * matrix * scales[1]
    matrix = matrix if left is None else left.astype(matrix.dtype) @ matrix
    matrix = matrix if right is None else matrix @ right.astype(matrix.dtype)
    factor = kernels.orthogonal(matrix, plan.update.iterations, plan.block)
    levels = kernels.blend(memory.levels[name], (factor * factor).mean(1), MOMENT_DECAY)
    unit = -kernels.unit(scales[0] * kernels.levelled(factor, levels) * scales[1])
    if last:
        unit = xp.moveaxis(unit.reshape(mixed.shape[-1:] + mixed.shape[:-1]), 0, -1)
    return unit.reshape(mixed.shape), energies, levels


def _lengths(plan: Plan, before: Any, update: Update) -> tuple[Any, Any]:
    """Lengths of the corrected updates, shape (K,), and that of the longest updates so far.

    They are 0 where the optimizer has not moved, or not by a finite length.
    """
    steps = [
        norm(wide(update.after[n]) - (1.0 - update.shrinks[n]) * wide(update.before[n]))
        for n in plan.shapes
    ]
    xp = array_library(*steps)
    own = xp.stack(steps)
    own = xp.where(xp.isfinite(own), own, 0.0)
    shapes, longest = list(plan.shapes.values()), longest_update(own, before)
    tall = xp.asarray([stretch(*shape) for shape in shapes], dtype=own.dtype)
    lengths = own * magnification(shapes, longest) * tall
    most = update.bound
    if plan.update is not None and plan.update.bound is not None:
        most = xp.minimum(most, plan.update.bound)
    return xp.where(own > 0.0, xp.minimum(lengths, most * own), 0.0), longest


def _moved(
    rule: SpectralUpdate, directions: Arrays, lengths: Any, still: Arrays, update: Update
) -> dict[str, Any]:
    """Weights after the corrected update; the optimizer's own where it is not corrected."""
    share, weights = rule.share, {}
    for length, (name, direction) in zip(lengths, directions.items(), strict=True):
        before, after = update.before[name], update.after[name]
        kept = share * (1.0 - update.shrinks[name])
        mixed = share * length * direction + kept * before
        mixed = mixed + (1.0 - share) * after if share < 1.0 else mixed
        xp = array_library(mixed)
        usable = update.active & (length > 0) & xp.isfinite(norm(direction))
        weights[name] = xp.where(still[name] | ~usable, after, mixed.astype(after.dtype))
    return weights
