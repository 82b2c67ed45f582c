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
from hybrid_predict.functional.arrays import numbers_by_name
from hybrid_predict.functional.plan import make_plans
from hybrid_predict.policy.schedule import cooling, schedule

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as missing:
    raise MissingExtraError("hybrid_predict.integrations.optax", "jax") from missing

Rate = Callable[[Any], Any] | float
"""A learning rate, or a schedule: a function from the number of steps done to a rate."""

Decay = float | Mapping[str, float]
"""The decoupled weight decay of an optimizer, a number or one by parameter name."""


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
    weight_decay: Decay,
    outputs_last: bool = True,
    step_operations: float | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer whose updates of hidden matrices are corrected; nothing is predicted.

    Args:
        optimizer: Any optax optimizer that updates parameters right away, against their gradients
            if the learning rate is positive.
        learning_rate: The same rate or schedule that the optimizer was made with.
        config: What is corrected: ``HybridConfig(speedup=1, kinds=...)``.
        weight_decay: The decoupled weight decay that the optimizer was made with, a number or one
            by parameter name; 0 if it has none, or adds it to the gradient.
        outputs_last: Whether matrices are of shape (inputs, outputs).
        step_operations: Operations of forward and backward, see :func:`count_operations`. None
            corrects in full, whatever ``config.max_overhead`` says.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ConfigError: If an argument cannot work, or predicted steps are asked for;
            :func:`train_step` makes these.

    Example:
        >>> config = HybridConfig(speedup=1, kinds={"out.*": "head"})
        >>> optimizer = corrected(optax.adamw(1e-3), 1e-3, config, weight_decay=1e-4)
    """
    rate = _rate(learning_rate)
    if not hasattr(optimizer, "update"):
        remedy = "Call it with a learning rate first."
        raise ConfigError("optimizer", "an optax optimizer", optimizer, remedy)
    if isinstance(config, HybridConfig) and config.compression > 1:
        expected = "1 in an optax transformation"
        remedy = "Use train_step for predicted steps."
        raise ConfigError("speedup", expected, config.speedup, remedy)
    plan = partial(
        make_plans, config=config, outputs_last=outputs_last, step_operations=step_operations
    )

    def init(params: Any) -> CorrectedState:
        weights = named(params)
        zero = jnp.zeros((), jnp.int32)
        known = transitions.start(plan(weights), weights)
        return CorrectedState(optimizer.init(params), known, zero, jnp.zeros(()))

    def update(updates: Any, state: CorrectedState, params: Any = None) -> Any:
        if params is None:
            raise ConfigError("params", "the parameters", None, "Call update(g, state, params).")
        own, inner = optimizer.update(updates, state.optimizer, params)
        before = named(params)
        after = named(optax.apply_updates(params, own))
        now = jnp.asarray(rate(state.count))
        peak = jnp.maximum(state.peak, abs(now)).astype(state.peak.dtype)
        decays = numbers_by_name("weight_decay", weight_decay, before)
        numbers = transitions.Numbers(
            dict.fromkeys(before, now),
            {name: now * decay for name, decay in decays.items()},
            dict.fromkeys(before, 0.0),
            fall=jnp.where(now != 0, peak / abs(now), 0.0),
            updates=state.count,
            active=config.total_steps is None or ~cooling(schedule(config), state.count),
        )
        arrays = state.tensors, named(updates), before, after
        new, known, _ = transitions.advance(plan(before), *arrays, numbers)
        moved = jax.tree.map(lambda x, y: x - y, _tree({**after, **new}, params), params)
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
    aux: Any  # what the loss function returns besides it; None without ``has_aux``
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
    weight_decay: Decay,
    momentum: float = 0.9,
    outputs_last: bool = True,
    has_aux: bool = False,
    step_operations: float | None = None,
) -> tuple[Callable[[Any], TrainState], Callable[..., tuple[TrainState, Record]]]:
    """Return a full step, with the predicted steps that are due right before it.

    What it computes is jitted. The host reads gradient norm and loss in each step, and decides.

    Args:
        value_and_grad: What ``jax.value_and_grad(loss)`` returns. It is called with
            ``(params, *batch)``.
        optimizer: Makes the optimizer from a learning rate: ``optax.adamw``, or a
            ``functools.partial`` of it; see :func:`corrected`.
        learning_rate: A rate, or a schedule over all N steps of the run, predicted ones included.
        config: What is corrected and predicted, with ``total_steps``.
        weight_decay: See :func:`corrected`.
        momentum: Decay of the slowest average of gradients that the optimizer follows, in [0, 1):
            its ``b1`` or momentum, or Lion's ``b2``.
        outputs_last: See :func:`corrected`.
        has_aux: Whether ``value_and_grad`` returns ``(loss, aux)`` in place of the loss.
        step_operations: See :func:`corrected`.

    Returns:
        Two functions. ``init(params)`` copies the parameters and returns a :class:`TrainState`.
        ``step(state, *batch)`` returns a new one and a :class:`Record`; buffers of the old one are
        donated, so it cannot be used again. ``step`` is not for ``jax.jit``.

    Raises:
        ConfigError: If an argument cannot work.
    """
    rate = _rate(learning_rate)
    if not callable(optimizer):
        expected = "a function that makes an optimizer from a learning rate"
        remedy = "Give optax.adamw in place of optax.adamw(1e-3)."
        raise ConfigError("optimizer", expected, type(optimizer).__name__, remedy)
    settings: dict[str, Any] = {"outputs_last": outputs_last, "step_operations": step_operations}

    def init(params: Any) -> TrainState:
        own = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        first = functional.init(named(own), config, momentum=momentum, **settings)
        return TrainState(own, optimizer(rate(0)).init(own), first)

    differentiated = jax.jit(value_and_grad)
    updated = jax.jit(partial(_updated, optimizer), static_argnums=0, donate_argnums=(1, 2, 3))

    def step(state: TrainState, *batch: Any) -> tuple[TrainState, Record]:
        now = float(rate(state.hybrid.clock.steps))
        moved, hybrid = functional.predict(state.hybrid, named(state.params), now, config=config)
        params = _tree(moved, state.params)
        inner = state.optimizer
        value, gradients = differentiated(params, *batch)
        loss, aux = value if has_aux else (value, None)
        stands, hybrid = functional.verify(hybrid, named(gradients), loss)
        known = hybrid.tensors
        slopes = None
        rates = dict.fromkeys(moved, now)
        if stands:
            decays = numbers_by_name("weight_decay", weight_decay, moved)
            numbers = steps.update_numbers(hybrid, rates, decays)
            arrays = params, inner, known, gradients
            params, inner, known, slopes = updated(hybrid.plans, *arrays, now, numbers)
        else:
            params = _tree({**moved, **hybrid.step.kept}, params)
        new = steps.settled(hybrid, known, rates, slopes)
        record = Record(loss, aux, hybrid.predicted, stands, new.clock.ticks, new.clock.steps)
        return TrainState(params, inner, new), record

    return init, step


def _updated(
    optimizer: Any,
    plans: Any,
    params: Any,
    inner: Any,
    known: Any,
    gradients: Any,
    now: Any,
    numbers: Any,
) -> Any:
    """Update parameters, and correct that; return what `transitions.advance` does, with states."""
    change, inner = optimizer(now).update(gradients, inner, params)
    before = named(params)
    after = named(optax.apply_updates(params, change))
    arrays = known, named(gradients), before, after
    new, known, slopes = transitions.advance(plans, *arrays, numbers)
    return _tree({**after, **new}, params), inner, known, slopes


def count_operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Count the floating-point operations of one call, for ``step_operations``.

    It is XLA's count before compilation; nothing is computed. The body of a ``jax.lax.scan`` or
    ``while_loop`` counts once, so multiply by hand where layers are scanned.

    Args:
        function: What ``jax.value_and_grad(loss)`` returns.
        arguments: Parameters and a batch, or ``jax.ShapeDtypeStruct`` in their place.

    Raises:
        ConfigError: If XLA does not count for this device.

    Example:
        >>> square = jax.value_and_grad(lambda w, x: ((x @ w) ** 2).sum())
        >>> count_operations(square, jnp.ones((8, 8)), jnp.ones((4, 8))) >= 2 * 2 * 4 * 8 * 8
        True
    """
    count = (jax.jit(function).lower(*arguments).cost_analysis() or {}).get("flops", 0.0)
    if not count > 0.0:
        expected = "a function that XLA counts operations of"
        remedy = "State the number yourself."
        raise ConfigError("function", expected, count, remedy)
    return float(count)


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


def _rate(learning_rate: Any) -> Callable[[Any], Any]:
    """A schedule, also for a number."""
    if callable(learning_rate):
        return learning_rate
    if isinstance(learning_rate, (int, float)) or getattr(learning_rate, "shape", 0) == ():
        return lambda step: jnp.asarray(learning_rate)
    raise ConfigError("learning_rate", "a number or a schedule", learning_rate)
