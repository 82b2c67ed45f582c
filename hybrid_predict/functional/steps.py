"""The three mechanisms: predict, verify, correct. The policy decides on the host."""

from __future__ import annotations

import logging
import math
import sys
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import transitions
from hybrid_predict.functional.arrays import check_arrays, number, numbers_by_name, select_backend
from hybrid_predict.functional.plan import Plans, make_plans
from hybrid_predict.functional.transitions import Numbers, Tensor
from hybrid_predict.policy import budget
from hybrid_predict.policy.confidence import Window, window_bounds
from hybrid_predict.policy.policy import (
    TOO_FEW,
    UNPREDICTED,
    Key,
    Outcome,
    Policy,
)
from hybrid_predict.policy.schedule import Phase, cooling, phase
from hybrid_predict.policy.verdict import NO_UPDATE, Slopes

logger = logging.getLogger(__name__)


@final
class Clock(NamedTuple):
    """How far the run is, and the window that compares forecasts."""

    steps: int = 0  # steps done
    full_steps: int = 0  # full steps done
    undone_steps: int = 0  # predicted steps that were undone
    ticks: int = 0  # steps that the last full step has brought
    updates: int = 0  # updates of the optimizer
    peak: float = 0.0  # largest learning rate in these
    plain: bool = False  # whether the rest is left to the optimizer
    displacements: int = 0  # so far
    begun: int = 0  # displacements before the open window; 0 without one
    rates: float = 0.0  # sum since then of the largest learning rate in each full step


@final
class OpenStep(NamedTuple):
    """The full step under way."""

    predicted: int = 0  # predicted steps right before it
    factors: Mapping[str, float] = {}  # drifts by which they have moved arrays, by name
    kept: Mapping[str, Any] = {}  # weights before them, by name
    finite: Any = True  # whether they were finite, 0-dim
    norm: float = math.nan  # of the gradients
    loss: float | None = None
    held: str = ""  # why the predicted steps are undone; empty if they stand


@final
class HybridState(NamedTuple):
    """Everything that the next call depends on; it can be pickled.

    Args:
        config: The configuration.
        plans: Which arrays are corrected and predicted, and how.
        tensors: What is known of these, arrays by name.
        policy: What decides about predicted steps; no call changes it, the next state has a copy.
        clock: How far the run is.
        step: The full step under way.
    """

    config: HybridConfig
    plans: Plans
    tensors: Mapping[str, Tensor]
    policy: Policy
    clock: Clock = Clock()
    step: OpenStep = OpenStep()

    @property
    def predicted(self) -> int:
        """Number of predicted steps under way."""
        return self.step.predicted


def init(
    weights: Mapping[str, Any],
    config: HybridConfig,
    *,
    momentum: float = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> HybridState:
    r"""Return the state before the first full step.

    Args:
        weights: All trained arrays by name, floating-point, of NumPy or of JAX.
        config: What is corrected and predicted; ``kinds`` names heads and embeddings.
        momentum: :math:`\beta_1` of the optimizer, in [0, 1): windows of displacements are longer
            for more, and what momentum carries on does not lengthen predicted steps.
        outputs_last: Whether matrices are of shape (inputs, outputs), as in most JAX libraries, in
            place of torch's (outputs, inputs).
        step_operations: Floating-point operations of forward and backward of a full step, of which
            ``config.max_overhead`` is a share. None corrects in full, whatever it says.

    Raises:
        ConfigError: If an argument has a value that cannot work.
    """
    check_arrays(weights=weights)
    plans = make_plans(weights, config, momentum, outputs_last, step_operations)
    planned = config
    if config.total_steps is None and config.compression == 1:
        planned = replace(config, total_steps=sys.maxsize, warmup_steps=1, cooldown_steps=0)
    policy = Policy(planned)
    _follow(policy, plans, resting=True)
    policy.set_length(policy.schedule.total)
    _log_limits(policy, plans)
    plans = plans._replace(arrays=()) if policy.locked else plans
    clock = Clock(plain=policy.locked)
    return HybridState(config, plans, transitions.start(plans, weights), policy, clock)


def _follow(policy: Policy, plans: Plans, *, resting: bool) -> None:
    """Tell a policy how arrays are."""
    parts = plans.parts(resting=resting).values()
    policy.follow(parts, plans.trained, affordable=plans.period is not None)


def _log_limits(policy: Policy, plans: Plans) -> None:
    """Say what ``max_overhead`` has changed, and whether too few weights would be predicted."""
    if plans.period is None and plans.step_operations:
        needed = plans.operations(budget.LONGEST_PERIOD)
        advice = budget.remedies(needed, plans.step_operations, plans.max_overhead, None)
        if policy.locked:
            reason = policy.reason.removeprefix(UNPREDICTED)
            logger.warning("This is plain training: %s; set %s.", reason, advice)
        else:
            logger.info("%s %s.", budget.NONE_FIT, advice)
    elif plans.period and plans.period > 1:
        logger.info("%s.", budget.describe_period(plans.period, plans.max_overhead).capitalize())
    if policy.reason == TOO_FEW:
        logger.warning("There are %s.", TOO_FEW)


def predict(
    state: HybridState, weights: Mapping[str, Any], learning_rates: Any, *, config: HybridConfig
) -> tuple[dict[str, Any], HybridState]:
    r"""Take the predicted steps that are due right before the coming full step.

    .. math:: \theta \leftarrow \theta + n \, \eta \, \lambda \, d

    They are made only with skill; otherwise nothing moves, and ``state.predicted`` is 0.

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
    _check(state, weights=weights)
    _check_settings(state, config=config)
    rates = numbers_by_name("learning_rates", learning_rates, weights)
    state = state._replace(step=OpenStep())
    plans = state.plans
    clock = state.clock
    factors = {}
    paused = clock.plain or state.policy.pausing(clock.full_steps + 1)
    count = 0 if paused else state.policy.due(clock.steps)
    if count and state.clock.displacements:
        state = state._replace(policy=deepcopy(state.policy))
        parts = plans.parts(resting=False)
        state.policy.renew({part.key: _largest(plans, rates) for part in parts.values()})
        for plan in plans.predicted:
            if multiple := state.policy.multiples(parts[plan.group]) * count:
                factors[plan.name] = rates[plan.name] * multiple * plan.length
    if not factors:
        return dict(weights), state
    kept = {name: weights[name] for name in factors}
    drifts = {name: state.tensors[name].history.drift for name in factors}  # type: ignore[union-attr]
    moved, finite = transitions.move(plans, kept, drifts, factors)
    step = OpenStep(count, factors, kept, finite, held=NO_UPDATE)
    return {**weights, **moved}, state._replace(step=step)


def verify(
    state: HybridState, gradients: Mapping[str, Any], loss: Any = None
) -> tuple[bool, HybridState]:
    """Decide by a full step's gradients and loss whether the predicted steps before it stand.

    They do not if a number is not finite, or exceeds its limit, see
    :class:`hybrid_predict.policy.limits.Limits`; then they pause.

    Args:
        state: What :func:`predict` returned.
        gradients: Those of all trained arrays by name, at the weights that :func:`predict`
            returned.
        loss: The full step's loss there, a number or a 0-dim array; None if it is not known.

    Returns:
        The verdict, True without predicted steps, and the new state. If it is False, the
        optimizer's update must not happen: keep its old state.

    Raises:
        ConfigError: If an argument has the wrong form.
    """
    _check(state, gradients=gradients)
    norm = float(transitions.total_norm(state.plans, gradients))
    value = None if loss is None else number("loss", loss)
    held = ""
    if state.predicted:
        held = state.policy.cause(0, norm, value, finite=bool(state.step.finite))
    return not held, state._replace(step=state.step._replace(norm=norm, loss=value, held=held))


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

    with c of ``config.updates``. Predicted steps that do not stand are undone.

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
        ConfigError: If a number is missing, a shape differs, or the state is another run's.
    """
    _check(state, before=before, gradients=gradients, after=after)
    given = {"outputs_last": outputs_last, "step_operations": step_operations}
    _check_settings(state, config=config, **given)
    rates = numbers_by_name("learning_rates", learning_rates, before)
    decays = numbers_by_name("weight_decay", weight_decay, before)
    if state.step.held:
        return {**before, **state.step.kept}, settled(state, state.tensors, rates)
    numbers = update_numbers(state, rates, decays)
    arrays = state.tensors, gradients, before, after, numbers
    moved, known, slopes = transitions.advance(state.plans, *arrays)
    weights = {name: moved.get(name, after[name]) for name in before}
    return weights, settled(state, known, rates, slopes)


def update_numbers(
    state: HybridState, rates: Mapping[str, float], decays: Mapping[str, float]
) -> Numbers:
    """Return the numbers of an update that happens."""
    clock = state.clock
    largest = _largest(state.plans, rates)
    cool = cooling(state.policy.schedule, clock.steps + state.predicted)
    names = [plan.name for plan in state.plans.arrays]
    return Numbers(
        {name: rates[name] for name in names},
        {name: rates[name] * decays[name] for name in names},
        {name: state.step.factors.get(name, 0.0) for name in names},
        fall=max(clock.peak, largest) / largest if largest else 0.0,
        updates=clock.updates,
        active=not (clock.plain or cool),
        newest=1.0 / (state.clock.displacements + 1) if largest else 0.0,
    )


def _largest(plans: Plans, rates: Mapping[str, float]) -> float:
    return max((abs(rates[plan.name]) for plan in plans.arrays), default=0.0)


def settled(
    state: HybridState,
    known: Mapping[str, Tensor],
    rates: Mapping[str, float],
    slopes: Any = None,
) -> HybridState:
    """Return the state after a full step, from which the policy has learned.

    Args:
        state: The state before the update.
        known: What is known of arrays after it.
        rates: Learning rates by name.
        slopes: See `transitions.advance`; None without predictors, and if no update happened.
    """
    step = state.step
    clock = state.clock
    policy = deepcopy(state.policy)
    plans = state.plans
    position = clock.steps, step.predicted
    now = phase(policy.schedule, *position, waiting=policy.awaits_skill, plain=clock.plain)
    seen = Outcome(
        clock.full_steps + 1,
        [step.norm],
        step.loss,
        warmup=now is Phase.WARMUP,
        predicted=step.predicted,
        held=step.held,
    )
    if slopes is not None and (rate := _largest(plans, rates)):
        known, clock, windows = _turned(state, known, rate)
        _follow(policy, plans, resting=False)
        seen = replace(seen, windows=windows)
    if slopes is not None and step.predicted:
        seen = replace(seen, **_summed(state, slopes))
    policy.learn(seen)
    policy.count_full_step()
    if policy.futile and not clock.plain:
        logger.warning("Full step %d: the rest is plain training: %s.", seen.step, policy.futile)
    standing = 0 if step.held else step.predicted
    ticks = min(1 + standing, max(0, policy.schedule.total - clock.steps))
    clock = clock._replace(
        steps=clock.steps + ticks,
        full_steps=seen.step,
        undone_steps=clock.undone_steps + step.predicted - standing,
        ticks=ticks,
        updates=clock.updates + (not step.held),
        peak=clock.peak if step.held else max(clock.peak, _largest(plans, rates)),
        plain=clock.plain or bool(policy.futile),
    )
    return state._replace(tensors=known, policy=policy, clock=clock, step=OpenStep())


def _turned(
    state: HybridState, known: Mapping[str, Tensor], rate: float
) -> tuple[Mapping[str, Tensor], Clock, list[tuple[Key, Window]]]:
    """Count a displacement; if the window is full, measure it and open the next one."""
    plans = state.plans
    clock = state.clock
    seen = state.clock.displacements + 1
    clock = clock._replace(displacements=seen, rates=clock.rates + rate)
    if seen != window_bounds(seen, plans.window, short=state.config.paced)[0]:
        return known, clock, []
    steps = seen - clock.begun
    sums, opened = transitions.turn(plans, known, float(steps))
    known = {name: x._replace(history=opened.get(name)) for name, x in known.items()}
    closed = []
    for plan, row in zip(plans.predicted, np.asarray(sums, float).tolist(), strict=True):
        closed.append(((plan.kind, 0), Window(steps, *row)._replace(rate=clock.rates / steps)))
    return known, clock._replace(begun=seen, rates=0.0), closed if clock.begun else []


def _summed(state: HybridState, slopes: Any) -> dict[str, Any]:
    """Sum the slopes of the arrays that predicted steps have moved."""
    rows = []
    ends = defaultdict[Key, float](float)
    for plan, row in zip(state.plans.predicted, np.asarray(slopes, float).tolist(), strict=True):
        if plan.name in state.step.factors:
            rows.append(row[:4])
            ends[plan.kind, 0] += row[4]
    return {"slopes": Slopes(*np.sum(rows, 0).tolist()), "ends": ends}


def _check(state: Any, **trees: Mapping[str, Any]) -> None:
    """Check the forms of a call's arguments, and that arrays are those of a state."""
    if not isinstance(state, HybridState):
        expected = "the state that init or the last call returned"
        remedy = "Call init first."
        raise ConfigError("state", expected, type(state).__name__, remedy)
    check_arrays(**trees)
    remedy = "Give all calls the arrays, config, outputs_last and step_operations of init."
    names = next(iter(trees.values()))
    for argument, arrays in trees.items():
        if (library := select_backend(arrays).library) != state.plans.library:
            raise ConfigError(argument, f"arrays of {state.plans.library}", library, remedy)
        if missing := sorted(names - arrays.keys()):
            raise ConfigError(argument, "an array for every name", f"none of {missing}")
        for plan in state.plans.arrays:
            shape = tuple(arrays[plan.name].shape) if plan.name in arrays else "nothing"
            if shape != plan.form:
                expected = f"the shape {plan.form}"
                raise ConfigError(f"{argument}[{plan.name!r}]", expected, shape, remedy)


def _check_settings(state: HybridState, **given: Any) -> None:
    """Check that a call has the settings of its state."""
    own = {**state.plans._asdict(), "config": state.config}
    for argument, value in given.items():
        if value != own[argument]:
            raise ConfigError(argument, f"that of init, {own[argument]!r}", value)
