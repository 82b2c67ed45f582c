"""Corrected updates as an optax transformation, and train steps with predicted steps.

Needs the extra ``jax``. Trees of parameters are named by their paths, such as ``dense.kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, final

from hybrid_predict import functional
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError, MissingExtraError
from hybrid_predict.functional import steps, transitions
from hybrid_predict.functional.plan import make_plans

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as missing:
    raise MissingExtraError("hybrid_predict.integrations.optax", "jax") from missing

Rate = Callable[[Any], Any] | float  # a function from the number of steps done, or a number


@final
class CorrectedState(NamedTuple):
    """State of :func:`corrected`, a tree of arrays."""

    optimizer: Any  # state of the optimizer
    tensors: Any  # what is known of corrected parameters
    count: Any  # updates so far
    peak: Any  # largest learning rate in these


def corrected(
    optimizer: optax.GradientTransformation,
    learning_rate: Rate,
    config: HybridConfig,
    *,
    weight_decay: float | Mapping[str, float],
    outputs_last: bool = True,
    step_operations: float | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer whose updates of hidden matrices are corrected; nothing is predicted.

    Args:
        optimizer: Any optax optimizer that updates parameters right away, against their gradients.
        learning_rate: The same rate or schedule that the optimizer was made with, at least 0.
        config: What is corrected: ``HybridConfig(speedup=1, kinds=...)``.
        weight_decay: The decoupled weight decay that the optimizer was made with, a number or one
            by parameter name; 0 if it has none, or adds it to the gradient.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        step_operations: See :func:`hybrid_predict.functional.init`.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ConfigError: If an argument cannot work, or predicted steps are asked for;
            :func:`train_step` makes these.

    Example:
        >>> config = HybridConfig(speedup=1, kinds={"out.*": "head"})
        >>> optimizer = corrected(optax.adamw(1e-3), 1e-3, config, weight_decay=1e-4)
    """
    rate = _schedule(learning_rate)
    if config.compression > 1:
        expected = "1 in an optax transformation"
        remedy = "Use train_step for predicted steps."
        raise ConfigError("speedup", expected, config.speedup, remedy)

    def plans(weights: Any) -> Any:
        return make_plans(weights, config, 0.0, outputs_last, step_operations)

    def init(params: Any) -> CorrectedState:
        weights = named(params)
        known = transitions.start(plans(weights), weights)
        zero = jnp.zeros((), jnp.int32)
        return CorrectedState(optimizer.init(params), known, zero, jnp.zeros(()))

    def update(updates: Any, state: CorrectedState, params: Any = None) -> Any:
        if params is None:
            raise ConfigError("params", "the parameters", None, "Call update(g, state, params).")
        weights = named(params)
        now = jnp.asarray(rate(state.count))
        peak = jnp.maximum(state.peak, now).astype(state.peak.dtype)
        numbers = transitions.Numbers(
            now,
            steps.shrinks(weights, now, weight_decay),
            dict.fromkeys(weights, 0.0),
            fall=jnp.where(now > 0, peak / now, 0.0),
            updates=state.count,
            active=True,
        )
        own, inner = optimizer.update(updates, state.optimizer, params)
        new, known, _ = _moved(plans(weights), params, own, state.tensors, updates, numbers)
        moved = jax.tree.map(jnp.subtract, new, params)
        return moved, CorrectedState(inner, known, state.count + 1, peak)

    return optax.GradientTransformation(init, update)


@final
class TrainState(NamedTuple):
    """What a train step takes and returns: parameters, and states of optimizer and plug-in."""

    params: Any
    optimizer: Any
    hybrid: functional.HybridState


@final
class Record(NamedTuple):
    """What one call of the train step has done: a full step, and the predicted steps before it."""

    loss: Any  # of the full step
    aux: Any  # what the loss function returns besides it, or None
    predicted: int  # number of predicted steps that came right before the full step
    stands: bool  # whether these stand; if not, the full step has undone them, and nothing else
    ticks: int  # steps of the run that this call has brought: 1 + predicted steps that stand
    steps: int  # steps of the run so far; it is done at ``config.total_steps``


def train_step(
    value_and_grad: Callable[..., tuple[Any, Any]],
    optimizer: Callable[[Any], optax.GradientTransformation],
    learning_rate: Rate,
    config: HybridConfig,
    *,
    weight_decay: float | Mapping[str, float],
    momentum: float = 0.9,
    outputs_last: bool = True,
    step_operations: float | None = None,
) -> tuple[Callable[[Any], TrainState], Callable[..., tuple[TrainState, Record]]]:
    """Return a full step, with the predicted steps that are due right before it.

    What it computes is jitted. The host reads gradient norm and loss in each step, and decides.

    Args:
        value_and_grad: What ``jax.value_and_grad(loss)`` returns, also with ``has_aux=True``. It is
            called with ``(params, *batch)``.
        optimizer: Makes the optimizer from a learning rate: ``optax.adamw``, or a
            ``functools.partial`` of it; see :func:`corrected`.
        learning_rate: A rate, or a schedule over all N steps of the run, predicted ones included.
        config: What is corrected and predicted, with ``total_steps``.
        weight_decay: See :func:`corrected`.
        momentum: Decay of the slowest average of gradients that the optimizer follows, in [0, 1):
            its ``b1`` or momentum, or Lion's ``b2``.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        step_operations: See :func:`hybrid_predict.functional.init`.

    Returns:
        Two functions. ``init(params)`` copies the parameters and returns a :class:`TrainState`.
        ``step(state, *batch)`` returns a new one and a :class:`Record`; buffers of the old one are
        donated, so it cannot be used again. ``step`` is not for ``jax.jit``.

    Raises:
        ConfigError: If an argument cannot work.
    """
    rate = _schedule(learning_rate)
    if not callable(optimizer):
        expected = "a function of the learning rate: optax.adamw in place of optax.adamw(1e-3)"
        raise ConfigError("optimizer", expected, type(optimizer).__name__)
    settings: dict[str, Any] = {"outputs_last": outputs_last, "step_operations": step_operations}

    def init(params: Any) -> TrainState:
        own = jax.tree.map(partial(jnp.array, copy=True), params)
        first = functional.init(named(own), config, momentum=momentum, **settings)
        return TrainState(own, optimizer(rate(0)).init(own), first)

    @partial(jax.jit, static_argnums=0, donate_argnums=(1, 2, 3))
    def updated(plans: Any, params: Any, inner: Any, known: Any, *given: Any) -> Any:
        gradients, numbers = given
        own, inner = optimizer(numbers.rate).update(gradients, inner, params)
        return inner, *_moved(plans, params, own, known, gradients, numbers)

    differentiated = jax.jit(value_and_grad)

    def step(state: TrainState, *batch: Any) -> tuple[TrainState, Record]:
        now = float(rate(state.hybrid.clock.steps))
        moved, hybrid = functional.predict(state.hybrid, named(state.params), now)
        params = _tree(moved, state.params)
        inner = state.optimizer
        known = slopes = None
        value, gradients = differentiated(params, *batch)
        loss, aux = value if isinstance(value, tuple) else (value, None)
        stands, hybrid = functional.verify(hybrid, named(gradients), loss)
        if stands:
            numbers = steps.update_numbers(hybrid, now, weight_decay)
            arrays = params, inner, hybrid.tensors, gradients, numbers
            inner, params, known, slopes = updated(hybrid.plans, *arrays)
        else:
            params = _tree({**moved, **hybrid.step.kept}, params)
        new = steps.settled(hybrid, now, known, slopes)
        record = Record(loss, aux, hybrid.predicted, stands, new.clock.ticks, new.clock.steps)
        return TrainState(params, inner, new), record

    return init, step


def _moved(
    plans: Any, params: Any, own: Any, known: Any, gradients: Any, numbers: Any
) -> tuple[Any, Any, Any]:
    before = named(params)
    after = named(optax.apply_updates(params, own))
    arrays = known, named(gradients), before, after, numbers
    new, known, slopes = transitions.advance(plans, *arrays)
    return _tree({**after, **new}, params), known, slopes


def named(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, joined by dots, which have to differ."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in leaves}
    if len(names) < len(leaves):
        raise ConfigError("params", "leaves with names of their own", sorted(names))
    return names


def _tree(arrays: dict[str, Any], like: Any) -> Any:
    """The inverse of :func:`named`."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(structure, [arrays[name] for name in named(like)])


def _schedule(learning_rate: Rate) -> Callable[[Any], Any]:
    return learning_rate if callable(learning_rate) else optax.constant_schedule(learning_rate)
