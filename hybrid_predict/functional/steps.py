"""The three mechanisms as pure functions: predict, verify, correct."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.window import window_length
from hybrid_predict.functional import baselines, histories, places
from hybrid_predict.functional.corrections import corrected
from hybrid_predict.functional.plan import Plan, plans, schedule
from hybrid_predict.functional.state import (
    Baseline,
    Clock,
    Group,
    HybridState,
    Monitor,
    Skill,
    select,
)
from hybrid_predict.functional.windows import add_skill, enough
from hybrid_predict.tensors.arrays import ArrayBackend, beside, cast, namespace, wide_dtype

Call = TypeVar("Call", bound=Callable[..., Any])


def init(weights: Mapping[str, Any], config: HybridConfig, *, momentum: float = 0.0) -> HybridState:
    r"""The state before the first full step.

    Args:
        weights: All trained arrays by name, floating-point, of one library.
        config: What is corrected and predicted; ``kinds`` names heads and embeddings.
        momentum: :math:`\beta_1` of the optimizer, in [0, 1): windows of displacements are longer
            for more.

    Returns:
        A pytree of arrays. Beside the weights it takes three times the memory of what is both
        corrected and predicted: averaged gradients, drift, and weights before predicted steps.

    Raises:
        ConfigError: If an argument has a value that cannot work.
        MissingExtraError: If array-api-compat is needed and not installed.
    """
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    if not (isinstance(momentum, (int, float)) and 0.0 <= momentum < 1.0):
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    xp = places.check_arrays("weights", weights)
    if places.computed_elsewhere(xp):
        weights = places.to_numpy(weights)
        xp = np
    like = list(weights.values())
    backend, own, dtype = ArrayBackend(config.history_dtype), beside(like), wide_dtype(*like)

    def integer(value: int) -> Any:
        return xp.asarray(value, dtype=xp.int32, **own)

    def number(value: float) -> Any:
        return xp.asarray(value, dtype=dtype, **own)

    found = plans(weights, config)
    predicted = [plan for plan in found.values() if plan.rule is not None]
    length = window_length(momentum)
    gated = bool(predicted) and all(plan.rule and plan.rule.gated for plan in predicted)
    due, lengths = schedule(config, length, gated)
    due = due if predicted else [0]
    clock = Clock(
        xp.asarray(due, dtype=xp.int32, **own), length=integer(length),
        **{name: integer(value) for name, value in lengths.items()},
        **{name: integer(0) for name in ("steps", "full_steps", "undone_steps", "ticks")},
        plain=xp.asarray(False, **own),
    )  # fmt: skip
    return HybridState(
        {key: _group(plan, weights, backend) for key, plan in found.items()},
        {plan.kind: Skill(integer(0), *(number(0.0) for _ in range(5))) for plan in predicted},
        Monitor(
            *(Baseline(number(0.0), number(0.0), integer(0)) for _ in range(2)),
            number(math.nan), number(math.nan), *(integer(0) for _ in range(4)),
        ),
        clock,
        {name: xp.zeros_like(weights[name]) for plan in predicted for name in plan.names},
        integer(0),
        xp.asarray(True, **own),
        xp.asarray(True, **own),
    )  # fmt: skip


def _group(plan: Plan, weights: Mapping[str, Any], backend: ArrayBackend) -> Group:
    own = {name: weights[name] for name in plan.names}
    like = list(own.values())
    update = plan.update.init(like, backend) if plan.update else None
    return Group(
        dict(zip(own, backend.zeros(like), strict=True)),
        dict(update.arrays) if update else {},
        dict(update.numbers) if update else {},
        histories.start(plan.rule, own, backend) if plan.rule else None,
    )


def placed(call: Call) -> Call:
    """Check the arrays of a call, and compute all of it with NumPy where their library cannot."""

    @wraps(call)
    def checked(state: HybridState, *arrays: Any, **options: Any) -> Any:
        given = [a for a in arrays if isinstance(a, Mapping) and a]
        xp = places.check_arrays(call.__name__, given[0] if given else {})
        with np.errstate(all="ignore"):  # what is not finite is masked, as on every device
            if not places.computed_elsewhere(xp):
                return call(state, *arrays, **options)
            moved = [places.to_numpy(a) for a in arrays]
            found, new = call(state, *moved, **{k: places.to_numpy(v) for k, v in options.items()})
            if isinstance(found, Mapping):
                return places.like(found, given[-1], xp), new
            return xp.asarray(bool(found), **beside(list(given[-1].values()))), new

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
    named = plans(weights, config)
    xp, clock = namespace(*weights.values()), state.clock
    if not state.kept:
        return dict(weights), state._replace(predicted=0 * clock.steps)
    position = xp.minimum(clock.steps, clock.total)
    due = xp.take(clock.due, xp.reshape(position, (1,)), axis=0)[0]
    may = ~clock.plain & ~baselines.pausing(state.monitor, clock.full_steps + 1)
    open_groups = _open(state, named, weights)
    rates, moved = _by_name(learning_rates, weights, "learning_rates"), dict(weights)
    predicted, sound = 0 * due, state.stands | True
    for key, ready in open_groups.items():
        history = state.groups[key].history
        assert history is not None
        made = may & ready & (due > 0)
        predicted = xp.where(made, due, predicted)
        for name, direction in histories.forecast(history).items():
            # One factor first, as the engine's alpha.
            change = (rates[name] * cast(due, direction.dtype)) * direction
            sound = sound & (xp.all(xp.isfinite(change)) | ~made)
            wide = cast(weights[name], wide_dtype(weights[name])) + change
            moved[name] = xp.where(made, cast(wide, weights[name].dtype), weights[name])
    kept = select(predicted > 0, {name: weights[name] for name in state.kept}, state.kept)
    stands = predicted == 0
    return moved, state._replace(kept=kept, predicted=predicted, sound=sound, stands=stands)


def _open(
    state: HybridState, named: Mapping[str, Plan], weights: Mapping[str, Any]
) -> dict[str, Any]:
    """Which groups may be predicted, as 0-dim bools: with skill, which most weights need."""
    ready, able, gated = {}, 0, 0
    for key, plan in named.items():
        history = state.groups[key].history
        if plan.rule is None or history is None:
            continue
        ready[key] = history.count > 0
        if plan.rule.gated:
            size = sum(math.prod(weights[name].shape) for name in plan.names)
            gated += size
            ready[key] = ready[key] & enough(state.skills[plan.kind])
            able = able + ready[key] * float(size)
    return {
        key: (found & (2 * able >= gated)) if named[key].rule.gated else found  # type: ignore[union-attr]
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
        loss: The full step's loss there, a number or a 0-dim array; None if it is not known.

    Returns:
        The verdict as 0-dim bool, True without predicted steps, and the new state. Where it is
        False the optimizer's update must not happen: keep its old state, see :func:`select`.
    """
    xp, monitor, clock = namespace(*gradients.values()), state.monitor, state.clock
    dtype = monitor.start.dtype
    norms = ArrayBackend().norms(list(gradients.values()))
    norm = cast(xp.sqrt(xp.sum(norms * norms)), dtype)
    value = xp.full_like(norm, math.nan) if loss is None else _number(loss, norm)
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
) -> tuple[dict[str, Any], HybridState]:
    r"""Put corrected updates in place of the optimizer's own, and learn from the displacement.

    .. math:: \theta \leftarrow (1 - \eta w) \, \theta + (1 - \kappa)\,u + \kappa\,c

    with the corrected update c of ``config.updates``. Where predicted steps do not stand, weights
    go back to what they were before these, and nothing is learned.

    Args:
        state: What :func:`verify` gave; without predicted steps what the last call gave.
        gradients: Of the full step, by name.
        before: Weights that the gradients were taken at.
        after: Weights after the optimizer's own update.
        learning_rates: :math:`\eta` of that update: a number, a 0-dim array, or one by name.
        config: That of :func:`init`.
        weight_decay: w of decoupled weight decay: a number, a 0-dim array, or one by name; 0 where
            the optimizer adds the decay to the gradient.

    Returns:
        The weights, and the new state, whose clock has ticked ``state.clock.ticks`` times.

    Raises:
        ConfigError: If a gradient or a rate is missing.
    """
    for argument, given in (("gradients", gradients), ("after", after)):
        places.check_arrays(argument, given)
        if missing := sorted(before.keys() - given.keys()):
            raise ConfigError(argument, "an array for every name in before", f"none of {missing}")
    namespace(*before.values(), *after.values(), *gradients.values())
    named = plans(before, config)
    rates = _by_name(learning_rates, before, "learning_rates")
    decays = _by_name(weight_decay, before, "weight_decay")
    shrinks = {name: rates[name] * decays[name] for name in before}
    backend, clock = ArrayBackend(config.history_dtype), state.clock
    active = (clock.steps + state.predicted < clock.total - clock.cooldown) & ~clock.plain
    bound = _bound(named, rates, before)
    weights, groups, readings = dict(after), {}, {}
    for key, plan in named.items():
        new, group, still = corrected(
            plan, state.groups[key], gradients, before, after, shrinks,
            bound=bound, active=active, backend=backend,
        )  # fmt: skip
        weights.update(new)
        if plan.rule is not None and group.history is not None:
            group, found = _learn(plan, group, before, new, still, rates, state, backend)
            readings.setdefault(plan.kind, []).append(found)
        groups[key] = group
    skills = {kind: add_skill(state.skills[kind], found) for kind, found in readings.items()}
    groups, skills = select(state.stands, (groups, skills), (state.groups, state.skills))
    undone = {name: state.kept.get(name, array) for name, array in before.items()}
    back = select(state.predicted > 0, undone, dict(before))
    return select(state.stands, weights, back), _ticked(state, groups, skills)


def _learn(
    plan: Plan, group: Group, before: Mapping[str, Any], new: Mapping[str, Any],
    still: Mapping[str, Any], rates: Mapping[str, Any], state: HybridState, backend: ArrayBackend,
) -> tuple[Group, Any]:  # fmt: skip
    """What a displacement teaches, in units of the learning rate; masked entries have not moved."""
    assert plan.rule is not None and group.history is not None
    xp, moved, any_rate = namespace(*before.values()), {}, []
    for name in plan.names:
        rate = rates[name]
        positive = rate > 0
        dtype = wide_dtype(new[name])
        change = cast(new[name], dtype) - cast(before[name], dtype)
        known = ~still[name] & positive
        moved[name] = xp.where(
            known, change / xp.where(positive, rate, xp.ones_like(rate)), 0 * change
        )
        any_rate.append(positive)
    learns = state.stands & xp.any(xp.stack(any_rate))
    found = histories.learn(
        plan.rule, group.history, moved, state.clock.length, learns, backend
    )  # fmt: skip
    return group._replace(history=found[0]), found[1]


def _ticked(state: HybridState, groups: Any, skills: Any) -> HybridState:
    xp, clock = namespace(state.stands), state.clock
    ticks = 1 + xp.where(state.stands, state.predicted, 0 * state.predicted)
    new = clock._replace(
        ticks=ticks,
        steps=clock.steps + ticks,
        full_steps=clock.full_steps + 1,
        undone_steps=clock.undone_steps + state.predicted - (ticks - 1),
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
        return {name: _number(given[name], array) for name, array in arrays.items()}
    return {name: _number(given, array) for name, array in arrays.items()}


def _number(given: Any, like: Any) -> Any:
    """A 0-dim array beside another one, in its type of at least 32 bits."""
    xp = namespace(like)
    if hasattr(given, "dtype"):
        return cast(xp.asarray(given, **beside([like])), wide_dtype(like))
    return xp.asarray(given, dtype=wide_dtype(like), **beside([like]))
