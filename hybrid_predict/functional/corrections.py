"""Corrected updates of one group, as a function of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.masks import ROUNDING
from hybrid_predict.functional.plan import Plan, turned
from hybrid_predict.functional.state import Group, select
from hybrid_predict.tensors.arrays import ArrayBackend, cast, namespace
from hybrid_predict.updates import AbstractUpdate
from hybrid_predict.updates.base import UpdateState

AVERAGE = 0.95
"""Decay of averaged gradients where no update asks for another."""


@final
class Update(NamedTuple):
    """The optimizer's update of one full step.

    Args:
        gradients: By name.
        before: Weights right before it.
        after: Weights right after it.
        rates: Learning rates by name, 0-dim arrays.
        shrinks: Fractions that decoupled weight decay has taken off, by name.
        bound: How much longer than this update a corrected one is at most, 0-dim.
        active: Whether updates are corrected now, 0-dim bool; averages move on anyway.
        outputs_last: Whether matrices are of shape (inputs, outputs), a bool.
    """

    gradients: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    rates: Mapping[str, Any]
    shrinks: Mapping[str, Any]
    bound: Any
    active: Any
    outputs_last: bool


def corrected(
    plan: Plan, group: Group, made: Update, backend: ArrayBackend
) -> tuple[dict[str, Any], Group, dict[str, Any]]:
    """Weights after the corrected update of a group.

    Args:
        plan: What happens to it.
        group: What is known of it.
        made: The optimizer's update.
        backend: How averages are stored.

    Returns:
        The weights, the group with its average and the update's state moved on, and a mask per
        tensor of the entries that are the optimizer's alone.
    """
    names = list(plan.names)
    average = [group.average[n] for n in names]
    new = [_descended(made.gradients[n], made.rates[n]) for n in names]
    xp = namespace(*new)
    norms, cosines = backend.angles(new, average)
    fine = [xp.isfinite(norms[k]) for k in range(len(names))]
    new = [xp.where(ok, g, cast(m, g.dtype)) for ok, g, m in zip(fine, new, average, strict=True)]
    average = backend.average(average, new, plan.update.decay if plan.update else AVERAGE)
    still = [(m == 0) | ~ok for m, ok in zip(average, fine, strict=True)]
    frozen = unmoved(plan, made)
    still = [
        mask | frozen[n] if n in frozen else mask for n, mask in zip(names, still, strict=True)
    ]
    weights, arrays, numbers = dict(made.after), group.arrays, group.numbers
    if plan.update is not None:
        last = made.outputs_last
        state = _state(plan, plan.update, group, made, backend)
        both, everyone = (turned(average, last), turned(new, last)), range(len(names))
        found = plan.update.direction(state, everyone, *both, cosines, backend)
        directions = turned(found, last, back=True)
        lengths = _lengths(plan.update, state, plan, made, backend)
        alone = [~made.active | mask for mask in still]
        weights = _moved(plan, directions, lengths, alone, made, backend)
        moved_on = (dict(state.arrays), dict(state.numbers))
        arrays, numbers = select(made.active, moved_on, (arrays, numbers))
    known_group = group._replace(
        average=dict(zip(names, average, strict=True)), arrays=arrays, numbers=numbers
    )
    weights = {name: weights[name] for name in names}
    return weights, known_group, dict(zip(names, still, strict=True))


def unmoved(plan: Plan, made: Update) -> dict[str, Any]:
    """Masks of the entries that stand still now; see `hybrid_predict.forecast.masks.unmoved`."""
    found = {}
    for name in plan.names if plan.kind != "embedding" else ():
        shrink, after = made.shrinks[name], made.after[name]
        xp, rest = namespace(after), cast(made.before[name] * (1.0 - shrink), after.dtype)
        off = cast(shrink > 0, after.dtype) * ROUNDING * xp.abs(rest)
        found[name] = (made.gradients[name] == 0) & (xp.abs(after - rest) <= off)
    return found


def _descended(gradient: Any, rate: Any) -> Any:
    """What an update goes against: the gradient, or its negative at a negative learning rate."""
    xp = namespace(gradient)
    one = xp.ones_like(rate)
    return cast(xp.where(rate < 0, -one, one), gradient.dtype) * gradient


def _state(
    plan: Plan, update: AbstractUpdate, group: Group, made: Update, backend: ArrayBackend
) -> UpdateState:
    """The update's state, from what the group holds of it."""
    like = [made.before[name] for name in plan.names]
    make = _layout if _has_hash(update) else _layout.__wrapped__
    found = make(update, tuple(tuple(x.shape) for x in like), made.outputs_last)
    _check_layout(found, group)
    stretch = None if found.stretch is None else backend.constants(found.stretch, like)
    arrays = {name: list(values) for name, values in group.arrays.items()}
    numbers = dict(group.numbers)
    return UpdateState(arrays, numbers, found.matrices, stretch, block=plan.block)


@final
class _Layout(NamedTuple):
    """What depends on shapes alone.

    Args:
        matrices: Rows and columns, as in the update's state.
        stretch: Factor per array, or None.
        arrays: Shapes of the state's arrays, by name.
    """

    matrices: tuple[tuple[int, int], ...]
    stretch: tuple[float, ...] | None
    arrays: dict[str, list[tuple[int, ...]]]


def _has_hash(update: AbstractUpdate) -> bool:
    """Whether an update can be a key; a frozen dataclass with a list in it cannot."""
    try:
        hash(update)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def _layout(
    update: AbstractUpdate, shapes: tuple[tuple[int, ...], ...], outputs_last: bool
) -> _Layout:
    """What a state has that is made for arrays of these shapes; made once, and by NumPy."""
    like = turned([np.broadcast_to(np.zeros(()), shape) for shape in shapes], outputs_last)
    state = update.init(like, ArrayBackend())
    stretch = None if state.stretch is None else tuple(state.stretch.tolist())
    arrays = {name: [tuple(x.shape) for x in xs] for name, xs in state.arrays.items()}
    return _Layout(state.shapes, stretch, arrays)


def _check_layout(found: _Layout, group: Group) -> None:
    """Check that a group's state has the shapes that it would have if it were made now."""
    known = {name: [tuple(x.shape) for x in xs] for name, xs in group.arrays.items()}
    if found.arrays != known:
        raise ConfigError("outputs_last", "that of init", "the other layout of matrices")


def _moved(
    plan: Plan,
    directions: Sequence[Any],
    lengths: Any,
    alone: Sequence[Any],
    made: Update,
    backend: ArrayBackend,
) -> dict[str, Any]:
    """Weights after the corrected update, but for the entries that are the optimizer's alone."""
    assert plan.update is not None
    share, weights = plan.update.share, {}
    xp = namespace(*directions)
    known = xp.isfinite(backend.norms(directions))
    for k, (name, direction) in enumerate(zip(plan.names, directions, strict=True)):
        own = alone[k] | (lengths[k] == 0) | ~known[k]
        before, after, shrink = made.before[name], made.after[name], made.shrinks[name]
        mixed = _mixed(share, lengths[k] * direction, before, after, shrink)
        weights[name] = xp.where(own, after, cast(mixed, after.dtype))
    return weights


def _lengths(
    update: AbstractUpdate,
    state: UpdateState,
    plan: Plan,
    made: Update,
    backend: ArrayBackend,
) -> Any:
    """Lengths of the corrected updates; 0 where the optimizer's own is no update."""
    kept = [1.0 - made.shrinks[n] for n in plan.names]
    left, right = ([side[n] for n in plan.names] for side in (made.after, made.before))
    own = backend.distances(left, right, kept)
    xp = namespace(own)
    own = xp.where(xp.isfinite(own), own, xp.zeros_like(own))
    lengths = update.lengths(state, range(len(plan.names)), own)
    most = made.bound
    if update.bound is not None:
        most = xp.minimum(most, xp.full_like(most, update.bound))
    longest = xp.where(xp.isfinite(most), xp.where(xp.isfinite(most), most, 1.0) * own, lengths)
    return xp.minimum(lengths, longest)


def _mixed(share: float, change: Any, before: Any, after: Any, shrink: Any) -> Any:
    """The optimizer's update and the corrected one by its share, beside weight decay."""
    mixed = share * change + (share * (1.0 - shrink)) * before
    return mixed + (1.0 - share) * after if share < 1.0 else mixed
