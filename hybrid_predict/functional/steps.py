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
from hybrid_predict.functional.kernels import largest, norm, total, wide, wide_dtype
from hybrid_predict.functional.plan import Plans, make_plans
from hybrid_predict.functional.state import HybridState
from hybrid_predict.rules.limits import alarmed, learned, loss_limit, norm_limits, pausing, risen
from hybrid_predict.rules.numbers import array_library, select
from hybrid_predict.rules.pace import Lagged, follow, lasting, measured_at, renewed
from hybrid_predict.rules.pace import weigh as weigh_pace
from hybrid_predict.rules.schedule import cooling
from hybrid_predict.rules.skill import Pooled, add_window, known
from hybrid_predict.rules.verdict import Evidence, Slopes, sound, weigh


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
    _check_call(state, weights=weights)
    plans, clock = make_plans(weights, config), state.clock
    if not state.kept:
        return dict(weights), state._replace(predicted=0 * state.predicted)
    groups = {key: group for key, group in plans.groups.items() if key in state.groups}
    plans = plans._replace(groups=groups)
    _check_state(state, plans, weights, config)
    planned = pacing.due(state)
    paused = pausing(state.limits, clock.full_steps + 1) | (state.evidence.ended > 0)
    may = ~clock.plain & ~paused & (planned > 0)
    rates, moved = numbers_by_name(learning_rates, weights, "learning_rates"), dict(weights)
    state = pacing.renew(state, plans, rates, may)
    predicted, finite, xp = 0 * planned, state.stands | True, array_library(planned)
    for key, times in pacing.forecasts_of(planned, state, plans, config).items():
        history, made = state.groups[key].history, may & (times > 0)
        assert history is not None
        predicted = xp.where(made, planned, predicted)
        for k, (name, drift) in enumerate(history.drift.items()):
            change = (rates[name] * times * history.factors[k]) * wide(drift)
            finite = finite & (xp.isfinite(change).all() | ~made)
            new = (wide(weights[name]) + change).astype(weights[name].dtype)
            moved[name] = xp.where(made, new, weights[name])
    kept = select(predicted > 0, {name: weights[name] for name in state.kept}, state.kept)
    stands = predicted == 0
    return moved, state._replace(kept=kept, predicted=predicted, sound=finite, stands=stands)


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
    _check_call(state, gradients=gradients)
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
        step_operations: That of :func:`init`; with another one, arrays have other turns.

    Returns:
        Weights, and the new state; its ``clock.ticks`` counts the steps done.

    Raises:
        ConfigError: If a number is missing, a shape differs, or the state is another run's.
    """
    _check_call(state, gradients=gradients, before=before, after=after)
    for argument, arrays in (("gradients", gradients), ("after", after)):
        given = {name: x for name, x in arrays.items() if name in before}
        _check_shapes(argument, given, before, "Give an array for every name in before.")
    plans, clock = make_plans(before, config, outputs_last, step_operations), state.clock
    _check_state(state, plans, before, config)
    _check_layout(state, plans)
    rates = numbers_by_name(learning_rates, before, "learning_rates")
    decays = numbers_by_name(weight_decay, before, "weight_decay")
    shrinks = {name: rates[name] * decay for name, decay in decays.items()}
    active = ~cooling(state.schedule, clock.steps + state.predicted) & ~clock.plain
    update = Update(gradients, before, after, rates, shrinks, active,
                    outputs_last, config.history_dtype)  # fmt: skip
    weights, groups, seen = {name: after[name] for name in before}, {}, []
    times = pacing.forecasts_of(state.predicted, state, plans, config)
    for key, plan in plans.groups.items():
        new = corrected(plan, state.groups[key], update)
        weights |= new.weights
        groups[key] = new.group
        if key in times:
            groups[key], shown = forecasts.learn(plan, new, times[key], update, state)
            seen.append(shown)
    moving = {name: before[name] for name in state.kept}
    undone = {**before, **select(state.predicted > 0, state.kept, moving)}
    new_state = _advanced(state, _learned(state._replace(groups=groups), seen))
    new_state = pacing.counted(new_state, plans)
    return select(state.stands, weights, undone), new_state


def _learned(state: HybridState, seen: list[forecasts.Seen]) -> HybridState:
    """The state with skills, evidence and paces of a full step whose predicted steps stand."""
    slopes = total(Slopes, (each.slopes for each in seen))
    weighed = weigh(state.evidence, slopes)
    evidence = select(state.predicted > 0, weighed, state.evidence)
    skills, paces, refuted = {}, {}, evidence.ended > 0
    if state.pacing.credit is None:
        refuted = refuted & lasting(state.pacing.paces.values())
    for kind, skill in state.skills.items():
        own = [each for each in seen if each.kind == kind]
        skills[kind] = add_window(skill, total(Pooled, (each.pooled for each in own)))
        if kind in state.pacing.paces:
            end = sum(each.end for each in own)
            pace = weigh_pace(state.pacing.paces[kind], slopes, end, state.predicted, refuted)
            lagged = total(Lagged, (each.lagged for each in own))
            rate = largest(each.rate for each in own)
            pace = renewed(pace, rate)
            after = follow(pace, lagged, planned=state.pacing.credit is None)
            paces[kind] = measured_at(rate, pace, after)
    evidence = select(refuted, Evidence(), evidence)
    pacing = state.pacing._replace(paces=paces)
    return state._replace(skills=skills, evidence=evidence, pacing=pacing)


def _advanced(state: HybridState, learned: HybridState) -> HybridState:
    """The state after a full step, with what it has learned if its predicted steps stand."""
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
    done = state.stands | True
    return state._replace(
        groups=select(state.stands, learned.groups, state.groups),
        skills=select(state.stands, learned.skills, state.skills),
        evidence=select(state.stands, learned.evidence, state.evidence),
        pacing=select(state.stands, learned.pacing, state.pacing),
        clock=clock, predicted=0 * state.predicted, sound=done, stands=done,
    )  # fmt: skip


def _check_call(state: Any, **trees: Mapping[str, Any]) -> None:
    """Check the forms of a call's arguments, and that all arrays are of one library."""
    if not isinstance(state, HybridState):
        expected, remedy = "the state that init or the last call returned", "Call init first."
        raise ConfigError("state", expected, type(state).__name__, remedy)
    for name, arrays in trees.items():
        check_arrays(name, arrays)
    check_library("arrays", [state.stands, *(x for each in trees.values() for x in each.values())])


def _check_state(
    state: HybridState, plans: Plans, arrays: Mapping[str, Any], config: HybridConfig
) -> None:
    """Check that a state is about these weights and settings."""
    dtype, own = wide_dtype(*arrays.values()), state.limits.start.dtype
    remedy = "Give init the same weights, config, outputs_last and step_operations."
    if dtype != own:
        raise ConfigError("state", f"a state of {dtype}", str(own), remedy)
    planned: dict[str, Any] = {}
    averages: dict[str, Any] = {}
    for key, plan in plans.groups.items():
        planned |= {f"{key}: {name}": arrays[name] for name in plan.shapes}
    for key, group in state.groups.items():
        averages |= {f"{key}: {name}": x for name, x in group.average.items()}
    _check_shapes("state", averages, planned, remedy)
    if state.skills and config.paced != (state.pacing.credit is not None):
        got = "a state of another speedup"
        raise ConfigError("state", f"a state of speedup={config.speedup!r}", got, remedy)


def _check_shapes(
    argument: str, arrays: Mapping[str, Any], wanted: Mapping[str, Any], remedy: str
) -> None:
    """Check that arrays have the names and shapes of others."""
    for name in sorted(arrays.keys() | wanted.keys()):
        expected, got = (
            tuple(each[name].shape) if name in each else "nothing" for each in (wanted, arrays)
        )
        if expected != got:
            raise ConfigError(f"{argument}[{name!r}]", f"the shape {expected}", got, remedy)


def _check_layout(state: HybridState, plans: Plans) -> None:
    """Check that matrices are read as :func:`init` was told."""
    for key, plan in plans.groups.items():
        for name, memory in (state.groups[key].corrections or {}).items():
            if memory.levels.shape[0] != plan.shapes[name][0]:
                raise ConfigError("outputs_last", "that of init", "the other layout of matrices")
