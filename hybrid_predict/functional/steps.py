"""The three mechanisms as pure functions: predict, verify, correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.gate import LEAST_MOVED
from hybrid_predict.functional import baselines, descents, histories, places
from hybrid_predict.functional.corrections import Update, corrected, unmoved
from hybrid_predict.functional.plan import Plan, chosen_block, count_trained, plans
from hybrid_predict.functional.schedule import due
from hybrid_predict.functional.state import Group, HybridState, select
from hybrid_predict.functional.windows import add_skill, enough
from hybrid_predict.rules.budget import BLOCKS
from hybrid_predict.tensors.arrays import ArrayBackend, beside, cast, namespace, wide_dtype
from hybrid_predict.verify.descent import Evidence, Slopes

Call = TypeVar("Call", bound=Callable[..., Any])

NAMED = ("weights", "gradients", "before", "after")
"""Arguments that are arrays by name."""

_NONE = HybridConfig()
"""Stands for the configuration where a call takes none."""


def placed(call: Call) -> Call:
    """Check the arrays of a call, and compute all of it with NumPy where their library cannot."""
    form = signature(call)

    @wraps(call)
    def checked(*positional: Any, **options: Any) -> Any:
        given = form.bind(*positional, **options).arguments
        state, trees = given["state"], {name: given[name] for name in NAMED if name in given}
        if not isinstance(state, HybridState):
            expected, remedy = "the state that init or the last call gave", "Call init first."
            raise ConfigError("state", expected, type(state).__name__, remedy)
        if not isinstance(config := given.get("config", _NONE), HybridConfig):
            raise ConfigError("config", "a HybridConfig", type(config).__name__)
        (xp, *_) = [places.check_arrays(name, tree) for name, tree in trees.items()]
        with np.errstate(all="ignore"):  # what is not finite is masked, as on every device
            if not places.computed_elsewhere(xp):
                namespace(state.stands, *(x for tree in trees.values() for x in tree.values()))
                return call(**given)
            found, new = call(**{name: places.to_numpy(value) for name, value in given.items()})
            wanted = trees.get("before") or next(iter(trees.values()))
            if isinstance(found, Mapping):
                return places.like(found, wanted, xp), new
            return xp.asarray(bool(found), **beside(list(wanted.values()))), new

    return checked  # type: ignore[return-value]


@placed
def predict(
    state: HybridState, weights: Mapping[str, Any], learning_rates: Any, *, config: HybridConfig
) -> tuple[dict[str, Any], HybridState]:
    r"""Take the predicted steps that are due right before the coming full step.

    .. math:: \theta \leftarrow \theta + n \, \eta \sum_j \lambda_j d_j

    They are made only with skill; else nothing moves, and ``state.predicted`` is 0.

    Args:
        state: What is known.
        weights: Arrays by name.
        learning_rates: :math:`\eta` of the coming full step: a number, a 0-dim array, or one of
            them by name.
        config: That of :func:`init`.

    Returns:
        Weights that only stand once :func:`verify` says so, and the new state.
    """
    xp, clock = namespace(*weights.values()), state.clock
    if not state.kept:
        return dict(weights), state._replace(predicted=0 * clock.steps)
    named = {k: plan for k, plan in plans(weights, config).items() if k in state.groups}
    _check_state(state, named, weights)
    planned = due(clock, config)
    pausing = baselines.pausing(state.monitor, clock.full_steps + 1) | (state.evidence.ended > 0)
    may = ~clock.plain & ~pausing
    open_groups = _open(state, named, weights, config)
    rates, moved = _by_name(learning_rates, weights, "learning_rates"), dict(weights)
    predicted, sound = 0 * planned, state.stands | True
    for key, ready in open_groups.items():
        history = state.groups[key].history
        assert history is not None
        made = may & ready & (planned > 0)
        predicted = xp.where(made, planned, predicted)
        for name, direction in histories.forecast(history).items():
            # One factor first, as the engine's alpha.
            change = (rates[name] * cast(planned, direction.dtype)) * direction
            sound = sound & (xp.all(xp.isfinite(change)) | ~made)
            wide = cast(weights[name], wide_dtype(weights[name])) + change
            moved[name] = xp.where(made, cast(wide, weights[name].dtype), weights[name])
    kept = select(predicted > 0, {name: weights[name] for name in state.kept}, state.kept)
    stands = predicted == 0
    return moved, state._replace(kept=kept, predicted=predicted, sound=sound, stands=stands)


def _open(
    state: HybridState, named: Mapping[str, Plan], weights: Mapping[str, Any], config: HybridConfig
) -> dict[str, Any]:
    """Which groups may be predicted, as 0-dim bools: with skill, which most weights need."""
    ready, able, gated, free = {}, 0, 0, 0
    for key, group in state.groups.items():
        plan, history = named[key], group.history
        if plan.rule is None or history is None:
            continue
        ready[key] = history.count > 0
        size = sum(math.prod(weights[name].shape) for name in plan.names)
        if plan.rule.gated:
            gated += size
            ready[key] = ready[key] & enough(state.skills[plan.kind])
            able = able + ready[key] * float(size)
        else:
            free += size
    trained = count_trained(weights, config)
    may = (2 * able >= gated) & (LEAST_MOVED * (able + free) >= trained)
    return {
        key: (found & may) if named[key].rule.gated else found  # type: ignore[union-attr]
        for key, found in ready.items()
    }


@placed
def verify(
    state: HybridState, gradients: Mapping[str, Any], loss: Any = None
) -> tuple[Any, HybridState]:
    """Decide by a full step's gradients and loss whether the predicted steps before it stand.

    They do not where a number is not finite, or beyond the limits of `verify.monitor`; then they
    pause. Numbers of every full step, verifying or not, move the limits.

    Args:
        state: What :func:`predict` gave.
        gradients: Of all trained arrays by name, at the weights that :func:`predict` gave.
        loss: The full step's loss there, a number or a 0-dim array; None if it is not known, or
            if it need not fall.

    Returns:
        The verdict as 0-dim bool, True without predicted steps, and the new state. Where it is
        False the optimizer's update must not happen: keep its old state, see :func:`select`.
    """
    xp, monitor, clock = namespace(*gradients.values()), state.monitor, state.clock
    dtype = monitor.start.dtype
    norms = ArrayBackend().norms(list(gradients.values()))
    norm = cast(xp.sqrt(xp.sum(norms * norms)), dtype)
    value = xp.full_like(norm, math.nan) if loss is None else _number(loss, norm, "loss")
    loss_limit, norm_limit = baselines.limits(monitor)
    good = state.sound & xp.isfinite(norm) & (norm <= norm_limit)
    if loss is not None:
        good = good & xp.isfinite(value) & (value <= loss_limit)
    stands = good | (state.predicted == 0)
    number = clock.full_steps + 1
    warmup = clock.steps < clock.warmup
    if state.skills:
        known = [skill.windows >= 2 for skill in state.skills.values()]
        waiting = ~xp.any(xp.stack(known)) & (clock.warmup > clock.length)
        warmup = warmup | waiting
    calm = baselines.learn(monitor, value, norm, warmup & (state.predicted == 0))
    new = select(stands, calm, baselines.alarm(monitor, number))
    plain = clock.plain | baselines.risen(new)
    return stands, state._replace(monitor=new, clock=clock._replace(plain=plain), stands=stands)


@placed
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
    r"""Put corrected updates in place of the optimizer's own, and learn from the displacement.

    .. math:: \theta \leftarrow (1 - \eta w) \, \theta + (1 - \kappa)\,u + \kappa\,c

    with c of ``config.updates``. Predicted steps that do not stand are undone; nothing is learned.

    Args:
        state: What :func:`verify` gave.
        gradients: Of the full step, by name; negated if a positive rate goes along them.
        before: Weights right before the optimizer's own update.
        after: Weights right after it.
        learning_rates: :math:`\eta` of it: a number, a 0-dim array, or one of them by name.
        config: That of :func:`init`.
        weight_decay: w of decoupled weight decay, likewise; 0 where it is added to the gradient.
        outputs_last: That of :func:`init`.
        step_operations: That of :func:`init`.

    Returns:
        Weights, and the new state; its ``clock.ticks`` counts the steps done.

    Raises:
        ConfigError: If a number is missing, a shape differs, the state is another run's, or
            ``step_operations`` limits corrections otherwise than in :func:`init`.
    """
    _check_alike(before, gradients, after)
    named, clock = plans(before, config, outputs_last, step_operations), state.clock
    _check_state(state, named, before)
    _check_block(state, named)
    rates = _by_name(learning_rates, before, "learning_rates")
    decays = _by_name(weight_decay, before, "weight_decay")
    shrinks = {name: rates[name] * decay for name, decay in decays.items()}
    active = (clock.steps + state.predicted < clock.total - clock.cooldown) & ~clock.plain
    bound = _bound(named, rates, before)
    made = Update(gradients, before, after, rates, shrinks, bound, active, outputs_last)
    weights, groups, skills, evidence = _all_followed(named, made, state, config)
    known = select(state.stands, (groups, skills), (state.groups, state.skills))
    state = state._replace(evidence=evidence)
    return select(state.stands, weights, _back(state, before)), _ticked(state, *known)


def _all_followed(
    named: Mapping[str, Plan], made: Update, state: HybridState, config: HybridConfig
) -> tuple[dict[str, Any], dict[str, Group], dict[str, Any], Evidence]:
    """Weights after the corrected updates of all groups, and what is known of these then."""
    weights, groups = {name: made.after[name] for name in made.before}, {}
    readings: dict[str, list[Any]] = {}
    slopes: list[Slopes] = []
    for key, plan in named.items():
        new, groups[key], found = _followed(plan, state.groups[key], made, state, config)
        weights |= new
        readings.setdefault(plan.kind, []).extend(reading for reading, _ in found)
        slopes += [steep for _, steep in found]
    skills = {kind: add_skill(skill, readings[kind]) for kind, skill in state.skills.items()}
    return weights, groups, skills, descents.weighed(state, slopes)


def _back(state: HybridState, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights as they were before the predicted steps under way."""
    moved = {name: weights[name] for name in state.kept}
    return {**weights, **select(state.predicted > 0, state.kept, moved)}


def _check_alike(
    before: Mapping[str, Any], gradients: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    for argument, given in (("gradients", gradients), ("after", after)):
        if missing := sorted(before.keys() - given.keys()):
            raise ConfigError(argument, "an array for every name in before", f"none of {missing}")
        for name, array in before.items():
            if tuple(given[name].shape) != tuple(array.shape):
                expected, got = f"{tuple(array.shape)} as in before", tuple(given[name].shape)
                raise ConfigError(f"{argument}[{name!r}]", expected, got)


def _check_state(state: HybridState, named: Mapping[str, Plan], arrays: Mapping[str, Any]) -> None:
    """Check that a state is about these weights and settings."""
    remedy = "Give init the same weights, config, outputs_last and step_operations."
    own, dtype = wide_dtype(*arrays.values()), state.monitor.start.dtype
    if dtype != own:
        raise ConfigError("state", f"a state of {own}", str(dtype), remedy)
    known = {key: group.average for key, group in state.groups.items()}
    for key in sorted(known.keys() | named.keys()):
        shapes = {name: tuple(x.shape) for name, x in known.get(key, {}).items()}
        plan = named.get(key)
        wanted = {name: tuple(arrays[name].shape) for name in plan.names} if plan else {}
        if odd := sorted(name for name, _ in shapes.items() ^ wanted.items()):
            expected, got = (each.get(odd[0], "nothing") for each in (wanted, shapes))
            raise ConfigError(f"state of {odd[0]!r}", f"the shape {expected}", got, remedy)


def _check_block(state: HybridState, named: Mapping[str, Plan]) -> None:
    """Check that ``step_operations`` limits corrections as it did for :func:`init`."""
    wanted, block = BLOCKS[state.blocks.shape[0] - 1], chosen_block(named)
    if block != wanted:
        expected = f"a number that allows {wanted or 'all'} rows at a time"
        remedy = "Give correct the step_operations and the config that init was given."
        raise ConfigError("step_operations", expected, f"{block or 'all'} rows", remedy)


def _followed(
    plan: Plan, group: Group, made: Update, state: HybridState, config: HybridConfig
) -> tuple[dict[str, Any], Group, list[tuple[Any, Slopes]]]:
    """A group's weights after its corrected update, and what the displacement teaches."""
    backend = ArrayBackend(config.history_dtype)
    new, group, still = corrected(plan, group, made, backend)
    if plan.rule is None or group.history is None:
        return new, group, []
    moved, any_rate = {}, []
    xp = namespace(*new.values())
    for name, mask in still.items():
        rate, dtype = made.rates[name], wide_dtype(new[name])
        change = cast(new[name], dtype) - cast(made.before[name], dtype)
        moves = xp.abs(rate) > 0
        per_rate = change / xp.where(moves, rate, xp.ones_like(rate))
        # What a gradient that is not finite has moved is no drift: it would stay in it.
        moved[name] = xp.where(~mask & moves, per_rate, xp.zeros_like(per_rate))
        any_rate.append(moves)
    learns, length = state.stands & xp.any(xp.stack(any_rate)), state.clock.length
    steep = descents.slopes(state, group, made.before, moved, made.rates)
    frozen = unmoved(plan, made)
    history, found = histories.learn(
        plan.rule, group.history, moved, frozen, length, learns, backend
    )
    return new, group._replace(history=history), [(found, steep)]


def _ticked(state: HybridState, groups: Any, skills: Any) -> HybridState:
    xp, clock = namespace(state.stands), state.clock
    standing = xp.where(state.stands, state.predicted, 0 * state.predicted)
    steps = xp.maximum(clock.steps, xp.minimum(clock.steps + 1 + standing, clock.total))
    new = clock._replace(
        ticks=steps - clock.steps,
        steps=steps,
        full_steps=clock.full_steps + 1,
        undone_steps=clock.undone_steps + state.predicted - standing,
    )
    return state._replace(
        groups=groups, skills=skills, clock=new, predicted=0 * state.predicted,
        sound=state.sound | True, stands=state.stands | True,
    )  # fmt: skip


def _bound(named: Mapping[str, Plan], rates: Mapping[str, Any], like: Mapping[str, Any]) -> Any:
    """1 where arrays that are corrected have different learning rates, else infinite; 0-dim."""
    own = [rates[n] for plan in named.values() if plan.update is not None for n in plan.names]
    arrays = list(like.values())
    xp, dtype = namespace(*arrays), wide_dtype(*arrays)
    free = xp.asarray(math.inf, dtype=dtype, **beside(arrays))
    if not own:
        return free
    each = xp.stack([cast(rate, dtype) for rate in own])
    return xp.where(xp.max(each) > xp.min(each), xp.ones_like(free), free)


def _by_name(given: Any, arrays: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """A 0-dim array of at least 32 bits for every array."""
    if isinstance(given, Mapping):
        if missing := sorted(arrays.keys() - given.keys()):
            raise ConfigError(argument, "a number for every name", f"none of {missing}")
        return {name: _number(given[name], x, argument) for name, x in arrays.items()}
    return {name: _number(given, array, argument) for name, array in arrays.items()}


def _number(given: Any, like: Any, argument: str) -> Any:
    """A 0-dim array beside another one, in its type of at least 32 bits."""
    xp = namespace(like)
    if not (isinstance(given, (int, float)) or getattr(given, "shape", None) == ()):
        got = getattr(given, "shape", type(given).__name__)
        raise ConfigError(argument, "a number or a 0-dim array", got)
    if hasattr(given, "dtype"):
        return cast(xp.asarray(given, **beside([like])), wide_dtype(like))
    return xp.asarray(given, dtype=wide_dtype(like), **beside([like]))
