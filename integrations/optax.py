"""Corrected updates as an optax transformation, and jitted train steps with predicted steps.

Needs the extra ``jax``. Trees of parameters are named by their paths, such as ``dense.kernel``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

from hybrid_predict import functional
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError, MissingExtraError

try:
    import array_api_compat  # noqa: F401 - the functional form needs it
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as missing:
    raise MissingExtraError("hybrid_predict.integrations.optax", "jax") from missing

Rate = Callable[[Any], Any] | float
"""A learning rate, or a schedule: a function of the step, from 0."""


@final
class CorrectedState(NamedTuple):
    """State of :func:`corrected`: the optimizer's, that of the corrections, and updates so far."""

    optimizer: Any
    hybrid: functional.HybridState
    count: Any


def corrected(
    optimizer: optax.GradientTransformation,
    learning_rate: Rate,
    config: HybridConfig,
    *,
    weight_decay: float = 0.0,
    outputs_last: bool = True,
) -> optax.GradientTransformation:
    """An optimizer whose updates of hidden matrices are corrected; nothing is predicted.

    Args:
        optimizer: Any optax optimizer.
        learning_rate: Its learning rate or schedule, said once more: decoupled weight decay is
            counted by it.
        config: What is corrected; ``HybridConfig(speedup=1, kinds=...)``.
        weight_decay: The optimizer's decoupled weight decay, as `optax.adamw` takes it.
        outputs_last: Whether matrices are of shape (inputs, outputs).

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ConfigError: If predicted steps are asked for; :func:`train_step` makes them.

    Example:
        >>> config = HybridConfig(speedup=1, kinds={"out.*": "head"})
        >>> optimizer = corrected(optax.adamw(1e-3), 1e-3, config, weight_decay=1e-4)
    """
    if config.compression > 1:
        expected, remedy = "1 in an optax transformation", "Use train_step for predicted steps."
        raise ConfigError("speedup", expected, config.speedup, remedy)

    def init(params: Any) -> CorrectedState:
        hybrid = functional.init(named(params), config, outputs_last=outputs_last)
        return CorrectedState(optimizer.init(params), hybrid, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: CorrectedState, params: Any = None) -> Any:
        if params is None:
            raise ConfigError("params", "the parameters", None, "Call update(g, state, params).")
        own, inner = optimizer.update(updates, state.optimizer, params)
        after = named(optax.apply_updates(params, own))
        new, hybrid = functional.correct(
            state.hybrid, named(updates), named(params), after, _at(learning_rate, state.count),
            config=config, weight_decay=weight_decay, outputs_last=outputs_last,
        )  # fmt: skip
        moved = jax.tree.map(lambda x, y: x - y, _tree(new, params), params)
        return moved, CorrectedState(inner, hybrid, state.count + 1)

    return optax.GradientTransformation(init, update)


@final
class TrainState(NamedTuple):
    """What a train step takes and returns: parameters, and the states of optimizer and plug-in."""

    params: Any
    optimizer: Any
    hybrid: functional.HybridState


@final
class Record(NamedTuple):
    """What one full step has done, as 0-dim arrays.

    Args:
        loss: Its loss.
        aux: What the loss function gives beside it; None without.
        predicted: Predicted steps right before it.
        stands: Whether these stand; True without any.
        ticks: Steps that it has brought: 1, and the predicted steps that stand.
        steps: Steps of the run so far; it is done at ``config.total_steps``.
    """

    loss: Any
    aux: Any
    predicted: Any
    stands: Any
    ticks: Any
    steps: Any


def train_step(
    value_and_grad: Callable[..., tuple[Any, Any]],
    optimizer: Callable[[Any], optax.GradientTransformation],
    learning_rate: Rate,
    config: HybridConfig,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    outputs_last: bool = True,
    has_aux: bool = False,
) -> tuple[Callable[[Any], TrainState], Callable[..., tuple[TrainState, Record]]]:
    """A jitted full step, with the predicted steps that are due right before it.

    Args:
        value_and_grad: As ``jax.value_and_grad(loss)`` makes it; called with ``(params, *batch)``.
        optimizer: Makes the optimizer for a learning rate, such as ``optax.adamw``.
        learning_rate: A rate, or a schedule over the run's N steps, predicted ones included.
        config: What is corrected and predicted, with ``total_steps``.
        weight_decay: The optimizer's decoupled weight decay.
        momentum: How much of its past the optimizer keeps (``b1``), in [0, 1).
        outputs_last: Whether matrices are of shape (inputs, outputs).
        has_aux: Whether ``value_and_grad`` gives ``(loss, aux)`` in place of the loss.

    Returns:
        ``init(params)``, which copies them, and ``step(state, *batch)``, which gives a new state
        and a :class:`Record`; the old state's buffers are donated.
    """
    settings: dict[str, Any] = {"config": config, "outputs_last": outputs_last}
    correct: Any = partial(functional.correct, weight_decay=weight_decay, **settings)

    def init(params: Any) -> TrainState:
        own = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        hybrid = functional.init(named(own), momentum=momentum, **settings)
        return TrainState(own, optimizer(_at(learning_rate, 0)).init(own), hybrid)

    def step(state: TrainState, *batch: Any) -> tuple[TrainState, Record]:
        rate = _at(learning_rate, state.hybrid.clock.steps)
        moved, hybrid = functional.predict(state.hybrid, named(state.params), rate, config=config)
        params = _tree(moved, state.params)
        value, gradients = value_and_grad(params, *batch)
        loss, aux = value if has_aux else (value, None)
        predicted = hybrid.predicted
        stands, hybrid = functional.verify(hybrid, named(gradients), loss)
        after, inner = _update(optimizer(rate), stands, gradients, state.optimizer, params)
        new, hybrid = correct(hybrid, *map(named, (gradients, params, after)), rate)
        record = Record(loss, aux, predicted, stands, hybrid.clock.ticks, hybrid.clock.steps)
        return TrainState(_tree(new, params), inner, hybrid), record

    return init, jax.jit(step, donate_argnums=0)


def _update(
    optimizer: optax.GradientTransformation, stands: Any, gradients: Any, state: Any, params: Any
) -> Any:
    """Parameters and state after the optimizer's update, or as they are if it is held back."""

    def updated(gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        own, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, own), state

    def held_back(_: Any, state: Any, params: Any) -> tuple[Any, Any]:
        return params, state

    return jax.lax.cond(stands, updated, held_back, gradients, state, params)


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, joined by dots."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in leaves}


def _tree(arrays: dict[str, Any], like: Any) -> Any:
    """The inverse of :func:`named`."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(structure, [arrays[name] for name in named(like)])


def _at(learning_rate: Rate, step: Any) -> Any:
    return learning_rate(step) if callable(learning_rate) else jnp.asarray(learning_rate)
