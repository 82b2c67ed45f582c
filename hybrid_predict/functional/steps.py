"""The three mechanisms as pure functions: predict, verify, correct."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import forecasts, pacing
from hybrid_predict.functional.arrays import check_arrays, check_library, number, numbers_by_name
from hybrid_predict.functional.corrections import Update, corrected
from hybrid_predict.functional.kernels import dot, norm, wide, wide_dtype
from hybrid_predict.functional.plan import Plan, chosen_block, count_trained, plans
from hybrid_predict.functional.state import Group, HybridState
from hybrid_predict.rules.budget import BLOCKS
from hybrid_predict.rules.gate import suffice
from hybrid_predict.rules.limits import alarmed, learned, loss_limit, norm_limits, pausing, risen
from hybrid_predict.rules.numbers import array_library, select
from hybrid_predict.rules.schedule import cooling
from hybrid_predict.rules.skill import Pooled, add_window, enough, known
from hybrid_predict.rules.verdict import Evidence, Slopes, sound, weigh

_NONE = HybridConfig()
"""The configuration where a call takes none."""


@np.errstate(all="ignore")  # numbers that are not finite are masked
def predict(
    state: HybridState, weights: Mapping[str, Any], learning_rates: Any, *, config: HybridConfig
) -> tuple[dict[str, Any], HybridState]:
    r"""Take the predicted steps that are due right before the coming full step.

    .. math:: \theta \leftarrow \theta + n \, \eta \, \lambda \, d

    They are made only with skill; otherwise nothing moves, and ``state.predicted`` is 0. With
    ``speedup="auto"`` each kind moves by its own multiple of this.

    Args:
        state: What is known.
        weights: Arrays by name.
        learning_rates: :math:`\eta` of the coming full step: a number, a 0-dim array, or one of
            them by name.
        config: That of :func:`init`.

    Returns:
        The moved weights, which :func:`verify` has still to accept, and the new state.

    Raises:
        ConfigError: If an argument has the wrong form, or the state is another run's.
    """
    _check_call(state, {"weights": weights}, config)
    if not state.kept:
        return dict(weights), state._replace(predicted=0 * state.predicted)
    groups, clock = plans(weights, config), state.clock
    groups = {key: plan for key, plan in groups.items() if key in state.groups}
    _check_state(state, groups, weights, config)
    planned = pacing.due(state, config)
    paused = pausing(state.limits, clock.full_steps + 1) | (state.evidence.ended > 0)
    may = ~clock.plain & ~paused & (planned > 0)
    rates, moved = numbers_by_name(learning_rates, weights, "learning_rates"), dict(weights)
    predicted, finite, xp = 0 * planned, state.stands | True, array_library(planned)
    ready = _ready(state, groups, weights, config)
    for key, times in pacing.forecasts_of(planned, state, groups, ready, config).items():
        history, made = state.groups[key].history, may & (times > 0)
        assert history is not None
        predicted = xp.where(made, planned, predicted)
        for k, (name, drift) in enumerate(history.drift.items()):
            change = (rates[name] * times * history.factors[k]) * wide(drift)
            finite = finite & (xp.isfinite(change).all() | ~made)
            new = (wide(weights[name]) + change).astype(weights[name].dtype)
            moved[name] = xp.where(made, new, weights[name])
    kept = select(predicted > 0, {name: weights[name] for name in state.kept}, state.kept)
    return moved, state._replace(
        kept=kept, predicted=predicted, sound=finite, stands=predicted == 0
    )


def _ready(
    state: HybridState,
    groups: Mapping[str, Plan],
    weights: Mapping[str, Any],
    config: HybridConfig,
) -> dict[str, Any]:
    """Which groups may be predicted, as 0-dim bools: those with skill, if they suffice."""
    ready, parts = {}, []
    for key, plan in groups.items():
        history = state.groups[key].history
        if plan.predictor is None or history is None:
            continue
        ready[key] = history.count > 0
        if plan.predictor.gated:
            ready[key] = ready[key] & enough(state.skills[plan.kind])
        parts.append(plan.part(ready[key]))
    if not parts:
        return {}
    may = suffice(parts, count_trained(weights, config))
    return {
        key: value & may if each.gated else value
        for (key, value), each in zip(ready.items(), parts, strict=True)
    }


@np.errstate(all="ignore")
def verify(
    state: HybridState, gradients: Mapping[str, Any], loss: Any = None
) -> tuple[Any, HybridState]:
    """Decide by a full step's gradients and loss whether the predicted steps before it stand.

    They do not if a number is not finite, or exceeds its limit, see
    :class:`hybrid_predict.rules.limits.Limits`; then they pause. Numbers of every full step,
    verifying or not, move the limits.

    Args:
        state: What :func:`predict` returned.
        gradients: Those of all trained arrays by name, at the weights that :func:`predict`
            returned.
        loss: The full step's loss there, a number or a 0-dim array; None if it is not known, or the
            objective is not stationary.

    Returns:
        The verdict as 0-dim bool, True without predicted steps, and the new state. If it is False,
        the optimizer's update must not happen: keep its old state, see :func:`select`.

    Raises:
        ConfigError: If an argument has the wrong form.
    """
    _check_call(state, {"gradients": gradients})
    clock, limits = state.clock, state.limits
    xp, dtype = array_library(state.stands), limits.start.dtype
    length = norm(xp.stack([norm(gradient) for gradient in gradients.values()])).astype(dtype)
    value = None if loss is None else number(loss, length, "loss")
    verdict = sound(length, norm_limits(limits)[0], value, loss_limit(limits))
    stands = (verdict & state.sound) | (state.predicted == 0)
    warmup = clock.steps < state.schedule.warmup
    if state.skills:
        skilled = xp.stack([known(skill) for skill in state.skills.values()]).any()
        warmup = warmup | (state.gated & ~skilled)
    loss_or_nan = xp.asarray(math.nan, dtype=dtype) if value is None else value
    calm = learned(limits, loss_or_nan, (length,), warmup & (state.predicted == 0))
    limits = select(stands, calm, alarmed(limits, clock.full_steps + 1))
    plain = clock.plain | risen(limits)
    return stands, state._replace(limits=limits, clock=clock._replace(plain=plain), stands=stands)


@np.errstate(all="ignore")
def correct(
    state: HybridState,
    gradients: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    learning_rates: Any,
    *,
    config: HybridConfig,
    weight_decay: Any = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> tuple[dict[str, Any], HybridState]:
    r"""Replace the optimizer's updates by corrected ones, and learn from the displacement.

    .. math:: \theta \leftarrow (1 - \eta w) \, \theta + (1 - \kappa)\,u + \kappa\,c

    with c of ``config.updates``. Predicted steps that do not stand are undone; nothing is learned.

    Args:
        state: What :func:`verify` returned.
        gradients: Those of the full step, by name; negated if a positive rate goes along them.
        before: Weights right before the optimizer's own update.
        after: Weights right after it.
        learning_rates: :math:`\eta` of it: a number, a 0-dim array, or one of them by name.
        config: That of :func:`init`.
        weight_decay: w of decoupled weight decay, likewise; 0 if it is added to the gradient.
        outputs_last: That of :func:`init`.
        step_operations: That of :func:`init`.

    Returns:
        Weights, and the new state; its ``clock.ticks`` counts the steps done.

    Raises:
        ConfigError: If a number is missing, a shape differs, the state is another run's, or
            ``step_operations`` limits corrections otherwise than in :func:`init`.
    """
    _check_call(state, {"gradients": gradients, "before": before, "after": after}, config)
    for argument, arrays in (("gradients", gradients), ("after", after)):
        given = {name: x for name, x in arrays.items() if name in before}
        _check_shapes(argument, given, before, "Give an array for every name in before.")
    groups, clock = plans(before, config, outputs_last, step_operations), state.clock
    _check_state(state, groups, before, config)
    _check_layout(state, groups)
    rates = numbers_by_name(learning_rates, before, "learning_rates")
    decays = numbers_by_name(weight_decay, before, "weight_decay")
    shrinks = {name: rates[name] * decay for name, decay in decays.items()}
    active = ~cooling(state.schedule, clock.steps + state.predicted) & ~clock.plain
    update = Update(gradients, before, after, rates, shrinks, _bound(groups, rates), active,
                    outputs_last, config.history_dtype)  # fmt: skip
    weights, kept = {name: after[name] for name in before}, {}
    windows: dict[str, list[forecasts.Closed]] = {kind: [] for kind in state.skills}
    slopes: list[Slopes] = []
    ready = _ready(state, groups, before, config)
    times = pacing.forecasts_of(state.predicted, state, groups, ready, config)
    for key, plan in groups.items():
        new, kept[key], still = corrected(plan, state.groups[key], update)
        weights |= new
        if key in ready:
            moved = forecasts.displacements(update, new, still)
            slopes.append(_slopes(kept[key], moved, rates, times[key]))
            own = state.pacing.momentum
            kept[key], window = forecasts.learn(plan, kept[key], moved, update, clock, own)
            windows[plan.kind].append(window)
    moving = {name: before[name] for name in state.kept}
    undone = {**before, **select(state.predicted > 0, state.kept, moving)}
    new_state = _advanced(state)._replace(
        groups=select(state.stands, kept, state.groups),
        **_learned(state, slopes, windows),
    )
    if config.paced:
        ready = _ready(new_state, groups, before, config)
        new_state = pacing.counted(new_state, groups, ready)
    return select(state.stands, weights, undone), new_state


def _bound(groups: Mapping[str, Plan], rates: Mapping[str, Any]) -> Any:
    """1 if corrected arrays have different learning rates, else infinite; a number or 0-dim."""
    own = [rates[name] for plan in groups.values() if plan.update for name in plan.shapes]
    if not own:
        return math.inf
    xp = array_library(*own)
    each = xp.stack(own)
    return xp.where(each.max() > each.min(), 1.0, math.inf).astype(each.dtype)


def _slopes(
    group: Group, moved: Mapping[str, Any], rates: Mapping[str, Any], predicted: Any
) -> Slopes:
    """How steep the predicted steps of a group were, and its displacement; zeros without them.

    The predicted movement is computed in at least 32 bits from the drift, because weights in 16
    bits round it.
    """
    assert group.history is not None
    products, squares, own_products, own_squares = [], [], [], []
    for k, (name, drift) in enumerate(group.history.drift.items()):
        length, mean = rates[name] * predicted * group.history.factors[k], group.average[name]
        products.append(length * dot(mean, drift))
        squares.append(length**2 * dot(drift, drift))
        own_products.append(rates[name] * dot(mean, moved[name]))
        own_squares.append(rates[name] ** 2 * dot(moved[name], moved[name]))
    sums = Slopes(*map(sum, (products, squares, own_products, own_squares)))
    xp = array_library(*sums)
    return Slopes(*(xp.where(sums.square > 0, number, 0.0) for number in sums))


def _learned(
    state: HybridState, slopes: list[Slopes], windows: Mapping[str, list[forecasts.Closed]]
) -> dict[str, Any]:
    """The skills, evidence and paces after a full step, if its predicted steps stand."""
    if not slopes:
        return {}
    pooled, skills = Slopes(*map(sum, zip(*slopes, strict=True))), {}
    for kind, each in windows.items():  # those that have not closed are zeros
        numbers = zip(*(window.pooled for window in each), strict=True)
        skills[kind] = add_window(state.skills[kind], Pooled(*map(sum, numbers)))
    evidence = weigh(state.evidence, pooled)
    evidence = select(state.predicted > 0, evidence, state.evidence)
    refuted = evidence.ended > 0
    own = pacing.learned(state.pacing, pooled, state.predicted, refuted, windows)
    if state.pacing.paces:
        evidence = select(refuted, Evidence(), evidence)
    return {
        "skills": select(state.stands, skills, state.skills),
        "evidence": select(state.stands, evidence, state.evidence),
        "pacing": select(state.stands, own, state.pacing),
    }


def _advanced(state: HybridState) -> HybridState:
    """The state after a full step, with an open verdict on nothing."""
    xp, clock = array_library(state.stands), state.clock
    standing = xp.where(state.stands, state.predicted, 0)
    steps = xp.minimum(clock.steps + 1 + standing, state.schedule.total)
    steps = xp.maximum(clock.steps, steps)
    clock = clock._replace(
        ticks=steps - clock.steps,
        steps=steps,
        full_steps=clock.full_steps + 1,
        undone_steps=clock.undone_steps + state.predicted - standing,
    )
    return state._replace(
        clock=clock, predicted=0 * state.predicted, sound=state.sound | True,
        stands=state.stands | True,
    )  # fmt: skip


def _check_call(state: Any, trees: Mapping[str, Mapping[str, Any]], config: Any = _NONE) -> None:
    """Check the forms of a call's arguments, and that all arrays are of one library."""
    if not isinstance(state, HybridState):
        expected, remedy = "the state that init or the last call returned", "Call init first."
        raise ConfigError("state", expected, type(state).__name__, remedy)
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    for name, arrays in trees.items():
        check_arrays(name, arrays)
    check_library("arrays", [state.stands, *(x for each in trees.values() for x in each.values())])


def _check_state(
    state: HybridState, groups: Mapping[str, Plan], arrays: Mapping[str, Any], config: HybridConfig
) -> None:
    """Check that a state is about these weights and settings."""
    dtype, own = wide_dtype(*arrays.values()), state.limits.start.dtype
    remedy = "Give init the same weights, config, outputs_last and step_operations."
    if dtype != own:
        raise ConfigError("state", f"a state of {dtype}", str(own), remedy)
    planned = {
        f"{key}: {name}": arrays[name] for key, plan in groups.items() for name in plan.shapes
    }
    averages = {
        f"{key}: {name}": x
        for key, group in state.groups.items()
        for name, x in group.average.items()
    }
    _check_shapes("state", averages, planned, remedy)
    if state.skills and config.paced != bool(state.pacing.paces):
        got = "a state of another speedup"
        raise ConfigError("state", f"a state of speedup={config.speedup!r}", got, remedy)


def _check_shapes(
    argument: str, arrays: Mapping[str, Any], wanted: Mapping[str, Any], remedy: str
) -> None:
    """Check that arrays have the names and shapes of others."""
    shapes, expected = (
        {name: tuple(x.shape) for name, x in each.items()} for each in (arrays, wanted)
    )
    for name in sorted({name for name, _ in shapes.items() ^ expected.items()}):
        shape, got = (each.get(name, "nothing") for each in (expected, shapes))
        raise ConfigError(f"{argument}[{name!r}]", f"the shape {shape}", got, remedy)


def _check_layout(state: HybridState, groups: Mapping[str, Plan]) -> None:
    """Check that matrices are read, and corrections limited, as :func:`init` was told."""
    wanted, block = BLOCKS[state.blocks.shape[0] - 1], chosen_block(groups)
    if block != wanted:
        expected = f"a number that allows {wanted or 'all'} rows at a time"
        remedy = "Give correct the step_operations and the config that init was given."
        raise ConfigError("step_operations", expected, f"{block or 'all'} rows", remedy)
    for key, plan in groups.items():
        memory = state.groups[key].correction
        for name, moments in memory.rows.items() if memory else ():
            if moments.shape[0] != plan.shapes[name][0]:
                raise ConfigError("outputs_last", "that of init", "the other layout of matrices")
