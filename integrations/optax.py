"""Corrected updates as an optax transformation, and jitted train steps with predicted steps.

Needs the extra ``jax``. Trees of parameters are named by their paths, such as ``dense.kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, final

from hybrid_predict import functional
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError, MissingExtraError

try:
    import jax
    import jax.numpy as jnp
    import optax

    from hybrid_predict.integrations.optax_probe import Probe
except ModuleNotFoundError as missing:
    raise MissingExtraError("hybrid_predict.integrations.optax", "jax") from missing

Rate = Callable[[Any], Any] | float
"""A learning rate, or a schedule: a function from the number of steps done to a rate."""


@final
class CorrectedState(NamedTuple):
    """State of :func:`corrected`: of the optimizer, of the corrections, and how many there were."""

    optimizer: Any
    hybrid: functional.HybridState
    count: Any


def corrected(
    optimizer: optax.GradientTransformation,
    learning_rate: Rate,
    config: HybridConfig,
    *,
    weight_decay: float | Mapping[str, float] | None = None,
    outputs_last: bool = True,
    step_operations: float | None = None,
) -> optax.GradientTransformation:
    """Return an optimizer whose updates of hidden matrices are corrected; nothing is predicted.

    Args:
        optimizer: Any optax optimizer that updates parameters right away.
        learning_rate: The same rate or schedule that the optimizer was made with.
        config: What is corrected: ``HybridConfig(speedup=1, kinds=...)``.
        weight_decay: The decoupled weight decay that the optimizer was made with, a number
            or one by parameter name. None finds it by updates of scratch parameters; ``init``
            raises a `ConfigError` where these do not show it.
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
        >>> optimizer = corrected(optax.adamw(1e-3), 1e-3, config)
    """
    hybrid = _Hybrid(config, outputs_last, step_operations)
    rate = _rate(learning_rate)
    if not hasattr(optimizer, "update"):
        remedy = "Call it with a learning rate first."
        raise ConfigError("optimizer", "an optax optimizer", optimizer, remedy)
    if config.compression > 1:
        expected, remedy = "1 in an optax transformation", "Use train_step for predicted steps."
        got = "auto" if config.paced else config.compression
        raise ConfigError("speedup", expected, got, remedy)
    probe = Probe(lambda rate: optimizer, rate, weight_decay)

    def init(params: Any) -> CorrectedState:
        return CorrectedState(
            optimizer.init(params), hybrid.start(params, probe), jnp.zeros((), jnp.int32)
        )

    def update(updates: Any, state: CorrectedState, params: Any = None) -> Any:
        if params is None:
            raise ConfigError("params", "the parameters", None, "Call update(g, state, params).")
        own, inner = optimizer.update(updates, state.optimizer, params)
        after, now = optax.apply_updates(params, own), rate(state.count)
        new, known = hybrid.correct(state.hybrid, updates, params, after, now, probe)
        moved = jax.tree.map(lambda x, y: x - y, new, params)
        return moved, CorrectedState(inner, known, state.count + 1)

    return optax.GradientTransformation(init, update)


@final
class TrainState(NamedTuple):
    """What a train step takes and returns: parameters, and states of optimizer and plug-in."""

    params: Any
    optimizer: Any
    hybrid: functional.HybridState


@final
class Record(NamedTuple):
    """What one call of the train step has done: a full step, and the predicted steps before it.

    Args:
        loss: Loss of the full step.
        aux: What the loss function returns besides it; None without ``has_aux``.
        predicted: Number of predicted steps that came right before the full step.
        stands: Whether these stand; True if there were none. If not, the full step has undone them,
            and nothing else.
        ticks: Steps of the run that this call has brought: 1 + the predicted steps that stand.
        steps: Steps of the run so far. The run is done at ``config.total_steps``.
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
    weight_decay: float | Mapping[str, float] | None = None,
    momentum: float = 0.9,
    outputs_last: bool = True,
    has_aux: bool = False,
    step_operations: float | None = None,
) -> tuple[Callable[[Any], TrainState], Callable[..., tuple[TrainState, Record]]]:
    """Return a jitted full step, with the predicted steps that are due right before it.

    Args:
        value_and_grad: What ``jax.value_and_grad(loss)`` returns. It is called with
            ``(params, *batch)``.
        optimizer: Makes the optimizer from a learning rate: ``optax.adamw``, or a
            ``functools.partial`` of it.
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
        ``step(state, *batch)`` returns a new one and a :class:`Record`; the buffers of the old one
        are donated, so it cannot be used again.

    Raises:
        ConfigError: If an argument cannot work.
    """
    hybrid = _Hybrid(config, outputs_last, step_operations)
    rate = _rate(learning_rate)
    if not callable(optimizer):
        expected = "a function that makes an optimizer from a learning rate"
        remedy = "Give optax.adamw in place of optax.adamw(1e-3)."
        raise ConfigError("optimizer", expected, type(optimizer).__name__, remedy)
    probe = Probe(optimizer, lambda k: 2.0 ** -(10.0 + k), weight_decay)

    def init(params: Any) -> TrainState:
        own = jax.tree.map(lambda x: jnp.array(x, copy=True), params)
        first = hybrid.start(own, probe, momentum)
        return TrainState(own, optimizer(rate(0)).init(own), first)

    def step(state: TrainState, *batch: Any) -> tuple[TrainState, Record]:
        now = rate(state.hybrid.clock.steps)
        moved, known = functional.predict(
            state.hybrid, named(state.params), now, config=hybrid.config
        )
        params, predicted = _tree(moved, state.params), known.predicted
        value, gradients = value_and_grad(params, *batch)
        loss, aux = value if has_aux else (value, None)
        watched = loss if config.watch_loss else None
        stands, known = functional.verify(known, named(gradients), watched)

        def updated() -> tuple[Any, Any]:
            change, new = optimizer(now).update(gradients, state.optimizer, params)
            return optax.apply_updates(params, change), new

        after, inner = jax.lax.cond(stands, updated, lambda: (params, state.optimizer))
        new, known = hybrid.correct(known, gradients, params, after, now, probe)
        record = Record(loss, aux, predicted, stands, known.clock.ticks, known.clock.steps)
        return TrainState(new, inner, known), record

    return init, jax.jit(step, donate_argnums=0)


@final
class _Hybrid:
    """The functional form on trees of parameters; a loss is watched if it is passed."""

    def __init__(
        self, config: HybridConfig, outputs_last: bool, step_operations: float | None
    ) -> None:
        if not isinstance(config, HybridConfig):
            raise ConfigError("config", "a HybridConfig", type(config).__name__)
        self.config = replace(config, watch_loss=True)
        self._layout: dict[str, Any] = {
            "outputs_last": outputs_last,
            "step_operations": step_operations,
        }

    def start(self, params: Any, probe: Probe, momentum: float = 0.0) -> functional.HybridState:
        """Return the first state; if the optimizer's direction is unknown, all is left to it."""
        _check_axes(params)
        signs, _ = probe(params)
        first = functional.init(named(params), self.config, momentum=momentum, **self._layout)
        plain = first.clock.plain
        return first._replace(clock=first.clock._replace(plain=plain if signs else ~plain))

    def correct(
        self, state: functional.HybridState, gradients: Any, params: Any, after: Any, rate: Any,
        probe: Probe,
    ) -> tuple[Any, functional.HybridState]:  # fmt: skip
        """Return parameters after the corrected update, and the state."""
        weights, turned, (signs, decay) = named(params), named(gradients), probe(params)
        if isinstance(decay, list):
            decay = dict(zip(weights, decay, strict=True))
        # What an update goes against is the gradient, or its negative.
        for name, sign in zip(weights, signs or [1.0] * len(weights), strict=True):
            turned[name] = -turned[name] if sign < 0 else turned[name]
        new, state = functional.correct(
            state, turned, weights, named(after), rate,
            config=self.config, weight_decay=decay, **self._layout,
        )  # fmt: skip
        return _tree(new, params), state


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
        expected, remedy = "a function that XLA counts operations of", "State the number yourself."
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


def _check_axes(params: Any) -> None:
    """Check that XLA may choose how what is computed is split over devices."""
    meshes = [getattr(getattr(x, "sharding", None), "mesh", None) for x in jax.tree.leaves(params)]
    types = {kind for mesh in meshes for kind in getattr(mesh, "axis_types", ())}
    if jax.sharding.AxisType.Explicit in types:
        expected, remedy = "arrays on meshes of automatic axes", "Use jax.sharding.AxisType.Auto."
        raise ConfigError("params", expected, "axes of type Explicit", remedy)


def _rate(learning_rate: Any) -> Callable[[Any], Any]:
    """A schedule, also for a number."""
    if callable(learning_rate):
        return learning_rate
    if isinstance(learning_rate, (int, float)) or getattr(learning_rate, "shape", 0) == ():
        return lambda step: jnp.asarray(learning_rate)
    raise ConfigError("learning_rate", "a number or a schedule", learning_rate)
