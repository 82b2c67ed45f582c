"""Corrected updates of one group, as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from hybrid_predict.functional import kernels
from hybrid_predict.functional.kernels import norm, wide, wide_dtype
from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Correction, Group
from hybrid_predict.rules.length import longest_update, magnification, stretch
from hybrid_predict.rules.numbers import ROUNDING, array_library, select
from hybrid_predict.rules.polynomials import ROW_MEMORY
from hybrid_predict.rules.verdict import AVERAGE
from hybrid_predict.updates.whitened import COVARIANCE_DECAY, EARLY, ROOTS_EVERY, SEEN_EVERY


@final
class Update(NamedTuple):
    """The optimizer's update of one full step.

    Args:
        gradients: By name.
        before: Weights right before it, by name.
        after: Weights right after it, by name.
        rates: Learning rates by name, 0-dim arrays.
        shrinks: Fractions that decoupled weight decay has removed, by name, 0-dim arrays.
        bound: How much longer than this update a corrected one is at most, 0-dim.
        active: Whether updates are corrected now, 0-dim bool; averages move on anyway.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        history: Type in which averages are stored.
    """

    gradients: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    rates: Mapping[str, Any]
    shrinks: Mapping[str, Any]
    bound: Any
    active: Any
    outputs_last: bool
    history: str


def start(plan: Plan, like: Mapping[str, Any], history: str) -> Correction:
    """Return the memory of a group's corrected updates before the first one."""
    xp, dtype = array_library(*like.values()), wide_dtype(*like.values())

    def squares(scale: float) -> tuple[dict[str, Any], ...]:
        def square(name: str, side: int) -> Any:
            return scale * xp.eye(side, dtype=kernels.average_dtype(like[name], history))

        return tuple(
            {n: square(n, sides[k]) for n, sides in plan.shapes.items() if sides[k] <= plan.longest}
            for k in range(2)
        )

    rows = {n: xp.zeros(m, dtype=wide_dtype(like[n])) for n, (m, _) in plan.shapes.items()}
    longest, steps = xp.zeros((), dtype=dtype), xp.zeros((), dtype=xp.int32)
    return Correction(rows, longest, steps, squares(0.0), squares(1.0))


def corrected(
    plan: Plan, group: Group, update: Update
) -> tuple[dict[str, Any], Group, dict[str, Any]]:
    """Correct the update of a group.

    Returns:
        The weights, the group with its new averages, and a mask per tensor of the entries that only
        the optimizer moves.
    """
    average, newest, cosines, still = {}, {}, {}, {}
    decay = plan.update.decay if plan.update else AVERAGE
    frozen = unmoved(plan, update)
    for name in plan.shapes:
        gradient, mean, rate = update.gradients[name], group.average[name], update.rates[name]
        xp = array_library(gradient)
        gradient = xp.where(rate < 0, -gradient, gradient)  # an update goes against it
        usable = xp.isfinite(norm(gradient))
        newest[name] = xp.where(usable, gradient, mean.astype(gradient.dtype))
        cosines[name] = kernels.cosine(gradient, mean)
        average[name] = kernels.average(mean, newest[name], decay, update.history)
        still[name] = (average[name] == 0) | ~usable | frozen.get(name, False)
    weights = {name: update.after[name] for name in plan.shapes}
    correction = group.correction
    if correction is not None:
        directions, new = _directions(plan, correction, average, newest, cosines, update)
        lengths, new = _lengths(plan, new, update)
        weights = _moved(plan, directions, lengths, still, update)
        correction = select(update.active, new, correction)
    return weights, group._replace(average=average, correction=correction), still


def unmoved(plan: Plan, update: Update) -> dict[str, Any]:
    """Return masks of the entries that stand still now, by name; none of embeddings.

    Their gradient is exactly zero, and the update has left them where they were, but for weight
    decay. Many rows of an embedding have no gradient in any batch.
    """
    masks = {}
    for name in plan.shapes if plan.kind != "embedding" else ():
        shrink, after = update.shrinks[name], update.after[name]
        rest = (update.before[name] * (1.0 - shrink)).astype(after.dtype)
        rounding = array_library(after).where(shrink > 0, ROUNDING, 0.0) * abs(wide(rest))
        alike = abs(wide(after) - wide(rest)) <= rounding
        masks[name] = (update.gradients[name] == 0) & alike
    return masks


def _directions(
    plan: Plan,
    correction: Correction,
    average: Mapping[str, Any],
    newest: Mapping[str, Any],
    cosines: Mapping[str, Any],
    update: Update,
) -> tuple[dict[str, Any], Correction]:
    """Directions of length one by name, and the memory after them."""
    assert plan.update is not None
    last = update.outputs_last
    matrices = {name: _matrix(x, last) for name, x in newest.items()}
    correction = _whitened(correction, matrices, update.history)
    directions, rows = {}, {}
    for name in plan.shapes:
        keep = 1.0 - plan.update.newest * (1.0 + cosines[name])
        mixed = kernels.blend(average[name], newest[name], keep)
        xp, matrix = array_library(mixed), _matrix(mixed, last)
        left, right = (roots.get(name) for roots in correction.roots)
        matrix = matrix if left is None else left.astype(matrix.dtype) @ matrix
        matrix = matrix if right is None else matrix @ right.astype(matrix.dtype)
        factor = kernels.orthogonal(matrix, plan.update.iterations, plan.block)
        moments = kernels.blend(correction.rows[name], (factor * factor).mean(1), ROW_MEMORY)
        unit = -kernels.unit(kernels.level_rows(factor, moments))
        shape = mixed.shape[-1:] + mixed.shape[:-1]
        directions[name] = (
            xp.moveaxis(unit.reshape(shape), 0, -1) if last else unit.reshape(mixed.shape)
        )
        rows[name] = moments
    return directions, correction._replace(rows=rows, steps=correction.steps + 1)


def _matrix(array: Any, outputs_last: bool) -> Any:
    """An array as a matrix of shape (outputs, rest)."""
    array = array_library(array).moveaxis(array, -1, 0) if outputs_last else array
    return array.reshape(array.shape[0], -1)


def _whitened(correction: Correction, values: Mapping[str, Any], history: str) -> Correction:
    """New covariances and roots, if it is their turn."""
    if not any(correction.covariances):
        return correction
    seen, due = (
        (correction.steps < EARLY) | (correction.steps % every == 0)
        for every in (SEEN_EVERY, ROOTS_EVERY)
    )
    decay = COVARIANCE_DECAY**SEEN_EVERY

    def side(means: dict[str, Any], axis: int) -> dict[str, Any]:
        units = {name: kernels.unit(wide(values[name])) for name in means}
        products = {name: x.T @ x if axis else x @ x.T for name, x in units.items()}
        return {n: kernels.average(mean, products[n], decay, history) for n, mean in means.items()}

    def averaged() -> tuple[dict[str, Any], ...]:
        return tuple(side(means, axis) for axis, means in enumerate(correction.covariances))

    def rooted() -> tuple[dict[str, Any], ...]:
        return tuple(
            {n: kernels.inverse_fourth_root(x, history) for n, x in means.items()}
            for means in covariances
        )

    covariances = kernels.when(seen, averaged, correction.covariances)
    roots = kernels.when(due, rooted, correction.roots)
    return correction._replace(covariances=covariances, roots=roots)


def _lengths(plan: Plan, correction: Correction, update: Update) -> tuple[Any, Correction]:
    """Lengths of the corrected updates, shape (K,), and the memory after them.

    They are 0 where the optimizer has not moved, or not by a finite length.
    """
    assert plan.update is not None
    steps = [
        norm(wide(update.after[n]) - (1.0 - update.shrinks[n]) * wide(update.before[n]))
        for n in plan.shapes
    ]
    xp = array_library(*steps)
    own = xp.stack(steps)
    own = xp.where(xp.isfinite(own), own, 0.0)
    shapes = list(plan.shapes.values())
    longest = longest_update(own, correction.longest)
    tall = xp.asarray([stretch(*shape) for shape in shapes], dtype=own.dtype)
    lengths = own * magnification(shapes, longest) * tall
    most = update.bound
    if plan.update.bound is not None:
        most = xp.minimum(most, plan.update.bound)
    lengths = xp.where(own > 0.0, xp.minimum(lengths, most * own), 0.0)
    return lengths, correction._replace(longest=longest)


def _moved(
    plan: Plan,
    directions: Mapping[str, Any],
    lengths: Any,
    still: Mapping[str, Any],
    update: Update,
) -> dict[str, Any]:
    """Weights after the corrected update; the optimizer's own where it is not corrected."""
    assert plan.update is not None
    share, weights = plan.update.share, {}
    for k, name in enumerate(plan.shapes):
        before, after, direction = update.before[name], update.after[name], directions[name]
        kept = share * (1.0 - update.shrinks[name])
        mixed = share * lengths[k] * direction + kept * before
        mixed = mixed + (1.0 - share) * after if share < 1.0 else mixed
        xp = array_library(mixed)
        usable = update.active & (lengths[k] > 0) & xp.isfinite(norm(direction))
        weights[name] = xp.where(still[name] | ~usable, after, mixed.astype(after.dtype))
    return weights
