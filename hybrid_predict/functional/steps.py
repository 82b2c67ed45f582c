"""The three mechanisms: predict, verify, correct. The policy decides on the host."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import transitions
from hybrid_predict.functional.plan import Plans, make_plans
from hybrid_predict.functional.transitions import Numbers, Tensor
from hybrid_predict.policy.confidence import Window, window_bounds, window_length
from hybrid_predict.policy.policy import TOO_FEW, Key, Outcome
from hybrid_predict.policy.predicting import PredictingPolicy
from hybrid_predict.policy.schedule import Phase, phase
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
    rates: float = 0.0  # sum of the learning rates since then


@final
class OpenStep(NamedTuple):
    """The full step under way."""

    predicted: int = 0  # predicted steps right before it
    factors: Mapping[str, float] = {}  # drifts by which they have moved arrays, by name
    kept: Mapping[str, Any] = {}  # weights before them, by name
    norm: float = math.nan  # of the gradients
    loss: float | None = None
    held: str = ""  # why the predicted steps are undone; empty if they stand


@final
class HybridState(NamedTuple):
    """Everything that the next call depends on; it can be pickled."""

    config: HybridConfig
    plans: Plans  # which arrays are corrected and predicted, and how
    tensors: Mapping[str, Tensor]  # what is known of these, by name
    policy: PredictingPolicy  # no call changes it, the next state has a copy
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
        weights: All trained arrays by name, floating-point, all of NumPy or all of JAX.
        config: What is corrected and predicted, with ``total_steps``, and ``kinds`` of heads and
            embeddings.
        momentum: :math:`\beta_1` of the optimizer, in [0, 1): windows of displacements are longer
            for more, and what momentum carries on does not lengthen predicted steps.
        outputs_last: Whether matrices are of shape (inputs, outputs), as in most JAX libraries, in
            place of torch's (outputs, inputs).
        step_operations: Floating-point operations of forward and backward of a full step, of which
            ``config.max_overhead`` is a share. None corrects in full, whatever it says.

    Raises:
        ConfigError: If an argument cannot work, or ``max_overhead`` allows no corrections.
    """
    plans = make_plans(weights, config, momentum, outputs_last, step_operations)
    policy = PredictingPolicy(config)
    policy.follow(plans.parts(resting=True), plans.trained)
    policy.set_length(policy.schedule.total)
    if policy.reason == TOO_FEW:
        logger.warning("There are %s.", TOO_FEW)
    return HybridState(config, plans, transitions.start(plans, weights), policy)


def predict(
    state: HybridState, weights: Mapping[str, Any], learning_rate: Any
) -> tuple[dict[str, Any], HybridState]:
    r"""Take the predicted steps that are due right before the coming full step.

    .. math:: \theta \leftarrow \theta + n \, \eta \, \lambda \, d

    They are made only with skill; otherwise nothing moves, and ``state.predicted`` is 0.

    Args:
        state: What is known.
        weights: Arrays by name.
        learning_rate: :math:`\eta` of the coming full step, at least 0: a number or a 0-dim array.

    Returns:
        The moved weights, which :func:`verify` has still to accept, and the new state.

    Raises:
        ConfigError: If an array is missing or has another shape than in :func:`init`, or the
            learning rate is negative.
    """
    _check(state, weights=weights)
    rate = _rate(learning_rate)
    state = state._replace(step=OpenStep())
    plans = state.plans
    clock = state.clock
    paused = clock.plain or state.policy.pausing(clock.full_steps + 1)
    count = 0 if paused else state.policy.due(clock.steps)
    factors = {}
    if count and clock.displacements:
        policy = deepcopy(state.policy)
        state = state._replace(policy=policy)
        parts = plans.parts(resting=False)
        policy.renew({part.key: rate for part in parts})
        multiples = {part.kind: policy.multiples(part) * count for part in parts}
        for plan in plans.predicted:
            if multiples[plan.kind]:
                factors[plan.name] = rate * multiples[plan.kind] * plan.length
    if not factors:
        return dict(weights), state
    kept = {name: weights[name] for name in factors}
    drifts = {name: state.tensors[name].drift for name in factors}
    moved = transitions.move(plans, kept, drifts, factors)
    step = OpenStep(count, factors, kept, held=NO_UPDATE)
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
        ConfigError: As :func:`predict`.
    """
    _check(state, gradients=gradients)
    norm = float(transitions.total_norm(state.plans, gradients))
    value = None if loss is None else float(loss)
    held = state.policy.cause(0, norm, value, finite=True) if state.predicted else ""
    return not held, state._replace(step=state.step._replace(norm=norm, loss=value, held=held))


def correct(
    state: HybridState,
    gradients: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    learning_rate: Any,
    *,
    weight_decay: Any = 0.0,
) -> tuple[dict[str, Any], HybridState]:
    r"""Replace the optimizer's updates by corrected ones, and learn from the displacement.

    .. math:: \theta \leftarrow (1 - \eta w) \, \theta + (1 - \kappa)\,u + \kappa\,c

    with c of ``config.updates``. Predicted steps that do not stand are undone instead.

    Args:
        state: What :func:`verify` returned.
        gradients: Those of the full step, by name; the optimizer goes against them.
        before: Weights right before the optimizer's own update.
        after: Weights right after it.
        learning_rate: As in :func:`predict`.
        weight_decay: w of decoupled weight decay, a number or one by name; 0 if it is added to the
            gradient.

    Returns:
        Weights, and the new state; its ``clock.ticks`` counts the steps done.

    Raises:
        ConfigError: As :func:`predict`, or if a weight decay is missing.
    """
    _check(state, before=before, gradients=gradients, after=after)
    rate = _rate(learning_rate)
    numbers = update_numbers(state, rate, weight_decay)
    if state.step.held:
        return {**before, **state.step.kept}, settled(state, rate)
    arrays = state.tensors, gradients, before, after, numbers
    moved, known, slopes = transitions.advance(state.plans, *arrays)
    return {**after, **moved}, settled(state, rate, known, slopes)


def update_numbers(state: HybridState, rate: float, weight_decay: Any) -> Numbers:
    """Return the numbers of an update that happens."""
    clock = state.clock
    names = [plan.name for plan in state.plans.arrays]
    over = clock.steps + state.predicted >= state.policy.schedule.total
    return Numbers(
        rate,
        shrinks(names, rate, weight_decay),
        {name: state.step.factors.get(name, 0.0) for name in names},
        fall=max(clock.peak, rate) / rate if rate else 0.0,
        updates=clock.updates,
        active=not (clock.plain or over),
        newest=1.0 / (clock.displacements + 1) if rate else 0.0,
    )


def shrinks(names: Iterable[str], rate: Any, weight_decay: Any) -> dict[str, Any]:
    """Return the fractions that decoupled weight decay removes, by name."""
    if not isinstance(weight_decay, Mapping):
        return dict.fromkeys(names, rate * weight_decay)
    if missing := sorted(set(names) - weight_decay.keys()):
        raise ConfigError("weight_decay", "a number for every name", f"none of {missing}")
    return {name: rate * weight_decay[name] for name in names}


def settled(state: HybridState, rate: float, known: Any = None, slopes: Any = None) -> HybridState:
    """Return the state after a full step; None for what `advance` returns if it was not called."""
    known = state.tensors if known is None else known
    step = state.step
    clock = state.clock
    policy = deepcopy(state.policy)
    waiting = policy.awaits_skill
    now = phase(policy.schedule, clock.steps, step.predicted, waiting=waiting, plain=clock.plain)
    windows: list[tuple[Key, Window]] = []
    if slopes is not None and rate:
        known, clock, windows = _turned(state, known, rate)
        policy.follow(state.plans.parts(resting=False), state.plans.trained)
    summed = {} if slopes is None or not step.predicted else _summed(state, slopes)
    number = clock.full_steps + 1
    measured = [step.norm], step.loss, now is Phase.WARMUP
    seen = Outcome(number, *measured, step.predicted, step.held, windows=windows, **summed)
    for event, level in policy.learn(seen).items():
        logger.log(level, "HybridPredict, full step %d: %s.", number, event)
    policy.count_full_step()
    if policy.futile and not clock.plain:
        text = "HybridPredict, full step %d: the rest is plain training: %s."
        logger.warning(text, number, policy.futile)
    standing = 0 if step.held else step.predicted
    ticks = min(1 + standing, max(0, policy.schedule.total - clock.steps))
    clock = clock._replace(
        steps=clock.steps + ticks,
        full_steps=number,
        undone_steps=clock.undone_steps + step.predicted - standing,
        ticks=ticks,
        updates=clock.updates + (not step.held),
        peak=clock.peak if step.held else max(clock.peak, rate),
        plain=clock.plain or bool(policy.futile),
    )
    return state._replace(tensors=known, policy=policy, clock=clock, step=OpenStep())


def _turned(
    state: HybridState, known: Mapping[str, Tensor], rate: float
) -> tuple[Mapping[str, Tensor], Clock, list[tuple[Key, Window]]]:
    plans = state.plans
    clock = state.clock
    seen = clock.displacements + 1
    clock = clock._replace(displacements=seen, rates=clock.rates + rate)
    if seen != window_bounds(seen, window_length(plans.momentum), short=state.config.paced)[0]:
        return known, clock, []
    steps = seen - clock.begun
    sums, known = transitions.turn(plans, known, float(steps))
    closed = []
    for plan, row in zip(plans.predicted, np.asarray(sums, float).tolist(), strict=True):
        closed.append(((plan.kind, 0), Window(steps, *row)._replace(rate=clock.rates / steps)))
    return known, clock._replace(begun=seen, rates=0.0), closed if clock.begun else []


def _summed(state: HybridState, slopes: Any) -> dict[str, Any]:
    rows = []
    ends = defaultdict[Key, float](float)
    for plan, row in zip(state.plans.predicted, np.asarray(slopes, float).tolist(), strict=True):
        if plan.name in state.step.factors:
            rows.append(row[:4])
            ends[plan.kind, 0] += row[4]
    return {"slopes": Slopes(*np.sum(rows, 0).tolist()), "ends": ends}


def _rate(learning_rate: Any) -> float:
    rate = float(learning_rate)
    if not rate >= 0.0:
        raise ConfigError("learning_rate", "a number of at least 0", rate)
    return rate


def _check(state: Any, **trees: Mapping[str, Any]) -> None:
    """Check the state, and that the arrays that it knows are given in their shapes."""
    if not isinstance(state, HybridState):
        expected = "the state that init or the last call returned"
        raise ConfigError("state", expected, type(state).__name__, "Call init first.")
    for argument, arrays in trees.items():
        for plan in state.plans.arrays:
            found = getattr(arrays.get(plan.name), "shape", "nothing")
            if found != plan.form:
                expected = f"an array of the shape {plan.form}"
                remedy = "Give all calls the arrays of init, under the same names."
                raise ConfigError(f"{argument}[{plan.name!r}]", expected, found, remedy)
