"""What scratch updates show of an optax optimizer: its direction and its decoupled weight decay."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hybrid_predict.errors import ConfigError, raise_interrupt

logger = logging.getLogger(__name__)

_WEIGHT = 1024.0
"""Size of scratch weights; against their decay, rounding errors of an update are small."""

_COMPARED, _MOST_UPDATES, _PUSHES = 3, 64, 4
"""Number of updates with a learning rate other than 0 whose decays are compared, and of all updates
then; number of updates that show the direction, of which the first may have a rate of 0."""

_NEAR, _SMALLEST = 1e-3, 1e-8
"""Largest relative difference of decays that count as equal, and smallest decay above 0."""

UNKNOWN = (
    "Corrections and predicted steps stay off: scratch updates do not show whether the optimizer "
    "goes against gradients or along them."
)


@final
class Probe:
    """Updates small scratch parameters; parameters of one form are tried once.

    Scratch parameters are a tree of the same form, with at most two entries in each dimension, so
    that masks and labels apply unless they depend on sizes. The learning rate is a function of the
    number of updates, an array, as optax counts them. A decay of None has it found.
    """

    def __init__(
        self,
        optimizer: Callable[[Any], Any],
        rate: Callable[[Any], Any],
        weight_decay: float | Mapping[str, float] | None,
    ) -> None:
        self._optimizer, self._rate, self._decay = optimizer, rate, weight_decay
        self._known: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, params: Any) -> tuple[list[float] | None, Any]:
        """Return :func:`directions`, and the decay, a number or a list of each leaf's."""
        leaves, structure = jax.tree.flatten(params)
        form = (structure, *((jnp.shape(x), str(jnp.result_type(x))) for x in leaves))
        if form not in self._known:
            signs, decay = directions(self._optimizer, self._rate, params), self._decay
            if signs is None:
                logger.warning(UNKNOWN)
            known: Any = 0.0 if signs is None else decay  # everything is left to the optimizer
            if known is None:
                known = find_decay(self._optimizer, self._rate, params)
            self._known[form] = signs, known
        return self._known[form]


def directions(
    optimizer: Callable[[Any], Any], rate: Callable[[Any], Any], params: Any
) -> list[float] | None:
    """Return -1.0 for each leaf that a positive rate moves along its gradient, else 1.0.

    Small leaves are updated with a gradient and with its negative. A leaf that does not move gets
    1.0. None: the optimizer cannot update small leaves, or moves none of them.
    """

    def end(sign: float) -> list[Any]:
        gradients, moved = (jax.tree.map(partial(_push, x), params) for x in (sign, 1.0))
        tried = optimizer(rate(jnp.asarray(0)))
        state = tried.init(moved)
        for _ in range(_PUSHES):
            update, state = tried.update(gradients, state, moved)
            moved = optax.apply_updates(moved, update)
        return [np.asarray(x, float) for x in jax.tree.leaves(moved)]

    try:
        with jax.ensure_compile_time_eval():
            pushes = [np.asarray(_push(1.0, leaf), float) for leaf in jax.tree.leaves(params)]
            columns = zip(end(1.0), end(-1.0), pushes, strict=True)
            signs = [np.sign(np.nan_to_num(((down - up) * g).sum())) for up, down, g in columns]
            turn = -1.0 if float(sum(rate(jnp.asarray(k)) for k in range(_PUSHES))) < 0 else 1.0
    except Exception as error:  # an optimizer may be made for leaves of other shapes
        raise_interrupt(error)
        return None
    return [turn * float(sign) or 1.0 for sign in signs] if any(signs) else None


def _small(leaf: Any) -> tuple[int, ...]:
    """The shape of a scratch leaf."""
    return tuple(min(size, 2) for size in jnp.shape(leaf))


def _push(factor: float, leaf: Any) -> Any:
    """A scratch gradient, from 0.1 to 0.3 times a factor."""
    shape = _small(leaf)
    values = 0.1 + 0.1 * (np.arange(math.prod(shape)) % 3).reshape(shape)
    return jnp.asarray(factor * values, jnp.result_type(leaf))


def find_decay(
    optimizer: Callable[[Any], Any], rate: Callable[[Any], Any], params: Any
) -> list[float]:
    r"""Return the decoupled weight decay of each leaf of the parameters.

    Two updates u with the same gradient and state, at weights w and 0, tell it:

    .. math:: u(w) - u(0) = - \eta \lambda w

    Raises:
        ConfigError: If the optimizer cannot be tried, its updates depend on the weights in another
            way, or the decay is not a constant multiple of the learning rate.
    """
    with jax.ensure_compile_time_eval():
        try:
            rows = _decays(optimizer, rate, jax.tree.map(_like, params))
        except Exception as error:
            raise_interrupt(error)
            raise _unknown("an optimizer that cannot update scratch parameters") from error
        if not rows:
            raise _unknown(f"a learning rate of 0 in the first {_MOST_UPDATES} updates")
        return [_agreed(each) for each in zip(*rows, strict=True)]


def _like(leaf: Any) -> Any:
    """Scratch weights of both signs, in at least 32 bits."""
    shape = _small(leaf)
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
    rows: list[list[Any]] = []
    for k in range(_MOST_UPDATES):
        at = rate(jnp.asarray(k))
        now, update = float(at), optimizer(at).update
        base, after = update(gradients, here, zero)
        other, after_other = update(gradients, there, like)
        if now:
            shown = [(update(gradients, here, w)[0], w) for w in (like, far)]
            slopes = [jax.tree.map(partial(_slope, now), u, base, w)
                      for u, w in (*shown, (other, like))]  # fmt: skip
            leaves = [jax.tree.leaves(slope) for slope in slopes]
            rows.append([jnp.stack(each) for each in zip(*leaves, strict=True)])
        if len(rows) == _COMPARED:
            break
        here, there = after, after_other
    return rows


def _slope(rate: float, update: Any, base: Any, weights: Any) -> Any:
    return (base - update) / (rate * weights)


def _agreed(shown: Sequence[Any]) -> float:
    """The decay that all updates of a leaf show."""
    values = jnp.concatenate([each.reshape(-1) for each in shown])
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
