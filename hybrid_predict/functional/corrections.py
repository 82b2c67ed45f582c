"""Corrected updates of one group, as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_predict.functional.plan import Plan
from hybrid_predict.functional.state import Group, select
from hybrid_predict.tensors.arrays import ArrayBackend, beside, cast, namespace
from hybrid_predict.updates import AbstractUpdate
from hybrid_predict.updates.base import UpdateState

AVERAGE = 0.95
"""Decay of averaged gradients where no update asks for another."""


def corrected(
    plan: Plan,
    group: Group,
    gradients: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    shrinks: Mapping[str, Any],
    *,
    bound: Any,
    active: Any,
    backend: ArrayBackend,
) -> tuple[dict[str, Any], Group, dict[str, Any]]:
    """Weights after the corrected update of a group.

    Args:
        plan: What happens to it.
        group: What is known of it.
        gradients: By name, also of others.
        before: Weights right before the optimizer's update.
        after: Weights right after it.
        shrinks: Fractions that decoupled weight decay takes off, by name.
        bound: How much longer than the optimizer's own an update is at most, 0-dim.
        active: Whether updates are corrected now, 0-dim bool; averages move on anyway.
        backend: How averages are stored.

    Returns:
        The weights, the group with its average and the update's state moved on, and a mask per
        tensor of the entries that are the optimizer's alone.
    """
    names = list(plan.names)
    average = [group.average[n] for n in names]
    new = [gradients[n] for n in names]
    xp = namespace(*new)
    norms, cosines = backend.angles(new, average)
    fine = [xp.isfinite(norms[k]) for k in range(len(names))]
    new = [xp.where(ok, g, cast(m, g.dtype)) for ok, g, m in zip(fine, new, average, strict=True)]
    average = backend.average(average, new, plan.update.decay if plan.update else AVERAGE)
    still = [(m == 0) | ~ok for m, ok in zip(average, fine, strict=True)]
    weights = {name: after[name] for name in names}
    arrays, numbers = group.arrays, group.numbers
    if plan.update is not None:
        like = [before[n] for n in names]
        state = _state(plan.update, group, like, backend)
        everyone = range(len(names))
        directions = plan.update.direction(state, everyone, average, new, cosines, backend)
        rows = zip(names, directions, still, strict=True)
        lengths = _lengths(plan.update, state, plan, before, after, shrinks, bound, backend)
        known = xp.isfinite(backend.norms(directions))
        for k, (name, direction, mask) in enumerate(rows):
            kept = mask | (lengths[k] == 0) | ~known[k] | ~active
            mixed = _mixed(plan.update.share, lengths[k] * direction, before[name], after[name],
                           shrinks[name])  # fmt: skip
            weights[name] = xp.where(kept, after[name], cast(mixed, after[name].dtype))
        moved_on = (dict(state.arrays), dict(state.numbers))
        arrays, numbers = select(active, moved_on, (arrays, numbers))
    known_group = group._replace(
        average=dict(zip(names, average, strict=True)), arrays=arrays, numbers=numbers
    )
    return weights, known_group, dict(zip(names, still, strict=True))


def _state(
    update: AbstractUpdate, group: Group, like: Sequence[Any], backend: ArrayBackend
) -> UpdateState:
    """The update's own state around the group's arrays; what changes in it is read back."""
    state = update.init(like, backend)
    state.arrays = {name: list(values) for name, values in group.arrays.items()}
    state.numbers = dict(group.numbers)
    return state


def _lengths(
    update: AbstractUpdate,
    state: UpdateState,
    plan: Plan,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    shrinks: Mapping[str, Any],
    bound: Any,
    backend: ArrayBackend,
) -> Any:
    """Lengths of the corrected updates; 0 where the optimizer's own is no update."""
    kept = [1.0 - shrinks[n] for n in plan.names]
    left, right = [after[n] for n in plan.names], [before[n] for n in plan.names]
    own = backend.distances(left, right, kept)
    xp = namespace(own)
    own = xp.where(xp.isfinite(own), own, xp.zeros_like(own))
    lengths = update.lengths(state, range(len(plan.names)), own)
    most = bound if update.bound is None else xp.minimum(bound, xp.full_like(bound, update.bound))
    longest = xp.where(xp.isfinite(most), xp.where(xp.isfinite(most), most, 1.0) * own, lengths)
    return xp.minimum(lengths, longest)


def _mixed(share: float, change: Any, before: Any, after: Any, shrink: Any) -> Any:
    """The optimizer's update and the corrected one by its share, beside weight decay."""
    mixed = share * change + (share * (1.0 - shrink)) * before
    return mixed + (1.0 - share) * after if share < 1.0 else mixed


def unbounded(like: Sequence[Any], backend: ArrayBackend) -> Any:
    """A 0-dim array of infinity beside arrays."""
    xp = namespace(*like)
    return backend.constants([float("inf")], like)[0] + xp.zeros((), **beside(like))
