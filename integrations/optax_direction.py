"""Whether an optax optimizer goes against gradients or along, found by scratch updates."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

logger = logging.getLogger(__name__)

_UPDATES = 4
"""Number of scratch updates; the first may be of rate 0."""

UNKNOWN = (
    "Corrections and predicted steps stay off: scratch updates do not show whether the optimizer "
    "goes against gradients or along them."
)


def directions(optimizer: optax.GradientTransformation, learning_rate: Any, params: Any) -> Any:
    """Return -1.0 for each leaf that a positive rate moves along its gradient, else 1.0, as a tree.

    Small leaves are updated with a gradient and with its negative. A leaf that does not move gets
    1.0.

    Args:
        optimizer: The optimizer.
        learning_rate: Its learning rate, or a schedule.
        params: The parameters, of which only names, shapes and types count.

    Returns:
        The tree, or None if the optimizer cannot update small leaves, or moves none of them.
    """
    leaves, structure = jax.tree.flatten(params)
    forms = tuple((tuple(min(n, 2) for n in x.shape), x.dtype) for x in leaves)
    try:
        with jax.ensure_compile_time_eval():
            signs = _signs(optimizer, structure, forms)
            turn = _turn(learning_rate)
    except Exception:  # an optimizer may be made for leaves of other shapes
        signs = []
    if not any(signs):
        return None
    return jax.tree.unflatten(structure, [turn * sign or 1.0 for sign in signs])


def _turn(learning_rate: Any) -> float:
    """-1.0 if the rates of the scratch updates are negative, else 1.0."""
    schedule = learning_rate if callable(learning_rate) else lambda _: learning_rate
    rates = [schedule(jnp.asarray(k)) for k in range(_UPDATES)]
    return -1.0 if float(sum(rates)) < 0 else 1.0


@lru_cache(maxsize=64)
def _signs(
    optimizer: optax.GradientTransformation, structure: Any, forms: tuple[Any, ...]
) -> list[float]:
    gradients = [0.1 + 0.1 * (np.arange(np.prod(s, dtype=int)) % 3).reshape(s) for s, _ in forms]

    def end(sign: float) -> list[Any]:
        def tree(arrays: list[Any]) -> Any:
            pairs = zip(arrays, forms, strict=True)
            return jax.tree.unflatten(structure, [jnp.asarray(x, dtype) for x, (_, dtype) in pairs])

        given, params = tree([sign * g for g in gradients]), tree([0.1 * g for g in gradients])
        state = optimizer.init(params)
        for _ in range(_UPDATES):
            moved, state = optimizer.update(given, state, params)
            params = optax.apply_updates(params, moved)
        return [np.asarray(x, float) for x in jax.tree.leaves(params)]

    columns = zip(end(1.0), end(-1.0), gradients, strict=True)
    return [float(np.sign(np.nan_to_num(((down - up) * g).sum()))) for up, down, g in columns]
