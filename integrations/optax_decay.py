"""Finds the decoupled weight decay of an optax optimizer, by updates of scratch parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hybrid_predict.errors import ConfigError, MissingExtraError

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as missing:
    raise MissingExtraError("hybrid_predict.integrations.optax", "jax") from missing

_WEIGHT = 1024.0
"""Size of scratch weights; against their decay, rounding errors of an update are small."""

UPDATES, _MOST_UPDATES = 3, 64
"""Number of updates with a learning rate other than 0 that are compared, and of all updates."""

_NEAR, _SMALLEST = 1e-3, 1e-8
"""Largest relative difference of decays that count as equal, and smallest decay above 0."""


def find_decay(
    optimizer: Callable[[Any], Any], rate: Callable[[Any], Any], params: Any
) -> list[float]:
    r"""Return the decoupled weight decay of each leaf of the parameters.

    Two updates u with the same gradient and state, at weights w and 0, tell it:

    .. math:: u(w) - u(0) = - \eta \lambda w

    Masks and labels apply, because the scratch parameters are a tree of the same form, with at most
    two entries in each dimension.

    Args:
        optimizer: Makes the optimizer from a learning rate.
        rate: The learning rate by the number of updates.
        params: The parameters; only their form is used.

    Raises:
        ConfigError: If the updates depend on the weights in another way, or the decay is not a
            constant multiple of the learning rate.
    """
    with jax.ensure_compile_time_eval():
        try:
            rows = _decays(optimizer, rate, jax.tree.map(_like, params))
        except Exception:  # where its direction cannot be tried either, everything is left to it
            return [0.0] * len(jax.tree.leaves(params))
        if not rows:
            raise _unknown(f"a learning rate of 0 in the first {_MOST_UPDATES} updates")
        return [_agreed(each) for each in zip(*rows, strict=True)]


def _like(leaf: Any) -> Any:
    """Scratch weights of both signs, in at least 32 bits."""
    shape = tuple(min(size, 2) for size in jnp.shape(leaf))
    signs = (-1.0) ** jnp.arange(math.prod(shape))
    dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
    return (_WEIGHT * signs).reshape(shape).astype(dtype)


def _decays(
    optimizer: Callable[[Any], Any], rate: Callable[[Any], Any], like: Any
) -> list[list[Any]]:
    """For each update, arrays of the decays that each leaf shows; none at a learning rate of 0.

    The second of two histories has other weights in all updates before, which must not matter.
    """
    zero, far = (jax.tree.map(partial(jnp.multiply, factor), like) for factor in (0.0, -2.0))
    gradients = jax.tree.map(jnp.ones_like, like)
    here = there = optimizer(rate(jnp.asarray(0))).init(like)
    rows = []
    for k in range(_MOST_UPDATES):
        at = rate(jnp.asarray(k))  # an array, as optax counts updates
        now, update = float(at), optimizer(at).update
        base, after = update(gradients, here, zero)
        other, after_other = update(gradients, there, like)
        if now:
            shown = ((update(gradients, here, w)[0], w) for w in (like, far))
            slopes = [jax.tree.map(partial(_slope, now), u, base, w) for u, w in shown]
            slopes.append(jax.tree.map(partial(_slope, now), other, base, like))
            leaves = [jax.tree.leaves(slope) for slope in slopes]
            rows.append([jnp.stack(each) for each in zip(*leaves, strict=True)])
        if len(rows) == UPDATES:
            break
        here, there = after, after_other
    return rows


def _slope(rate: float, update: Any, base: Any, weights: Any) -> Any:
    return (base - update) / (rate * weights)


def _agreed(found: Sequence[Any]) -> float:
    """The decay that all updates of a leaf show.

    Raises:
        ConfigError: If they show several.
    """
    values = jnp.concatenate([each.reshape(-1) for each in found])
    if not values.size:
        return 0.0
    least, most = float(values.min()), float(values.max())
    if not most - least <= max(_SMALLEST, _NEAR * abs(most)) or least < -_SMALLEST:
        raise _unknown("an optimizer whose updates depend on the weights in another way")
    mean = (least + most) / 2
    return float(f"{mean:.5g}") if mean > _SMALLEST else 0.0


def _unknown(got: str) -> ConfigError:
    remedy = (
        "Say the decoupled decay that it was made with, weight_decay=0.01 for example, or 0 if "
        "decay is added to the gradient."
    )
    expected = "a number, because the optimizer's decay cannot be found out"
    return ConfigError("weight_decay", expected, got, remedy)
