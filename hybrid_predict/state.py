"""The state of a run that is saved, and the processing of the measurements that are read."""

from __future__ import annotations

import logging
import reprlib
from typing import Any, final

from torch import Tensor

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import CheckpointError, all_or_nothing, reading
from hybrid_predict.groups.decision import KindDecision
from hybrid_predict.groups.groups import Groups
from hybrid_predict.ledger import SavingsLedger, StepRecord
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.optimizers.wrapper import OptimizerWrapper
from hybrid_predict.policy import budget
from hybrid_predict.policy.overfitting import OVERFITS, Overfitting
from hybrid_predict.policy.policy import NOTHING, Outcome, make_policy
from hybrid_predict.policy.schedule import OVER, Phase
from hybrid_predict.ranks import processes
from hybrid_predict.step import Measurement, Numbers, Step, read

logger = processes.rank_zero_logger(__name__)

RENEWED = "epochs or limits are not what they were, so the run's length was counted anew"
"""Event of the ledger: the run's length has changed on the way."""

MOST_UNREAD = 20
"""Number of full steps whose measurements may stay on the device, as many as a window has."""


STATE_VERSION = 26


@final
class State:
    """The state of a run that is saved; see :meth:`state_dict`."""

    def __init__(
        self, mapper: ParameterMapper, optimizer: OptimizerWrapper, config: HybridConfig
    ) -> None:
        self.ledger = SavingsLedger()
        self.policy = make_policy(config, len(optimizer.optimizers))
        self.groups = Groups(mapper, optimizer, config, self.policy)
        self.policy.set_length(self.policy.schedule.total)
        self.kinds = KindDecision(mapper)
        self._mapper = mapper
        self._config = config
        self.plain = not config.enabled  # whether the rest of the run is plain training
        self.remedy = ""  # what makes corrections fit; empty if they do, or are not counted
        self._unread: list[tuple[Step, Measurement]] = []
        self._stop = False
        if self.policy.judged and self.policy.schedule.shortfall:
            few = self.policy.schedule.planned < 0.8 * self.policy.schedule.wanted
            level = logging.WARNING if few else logging.INFO
            self.record_event(self.policy.schedule.shortfall, level)

    @property
    def done(self) -> bool:
        """Whether the run has reached its length, or is to end because it overfits."""
        stops = self._config.on_overfit == "stop" and self.policy.overfits
        return stops or self.ledger.steps >= self.policy.schedule.total

    @property
    def over(self) -> bool:
        """Whether all further full steps are plain training."""
        return self.plain or self.done

    @property
    def next_step(self) -> int:
        """Number of the next full step."""
        return self.ledger.full_steps + 1

    @property
    def futile(self) -> str:
        """Why the plug-in cannot help in the rest of the run; empty if it may."""
        if futile := self.policy.futile:
            return futile
        # Later, weights may have thawed that the first full step did not count.
        early = not self.ledger.full_steps
        return f"{budget.NONE_FIT} {self.remedy}" if early and self.policy.locked else ""

    def record_event(self, reason: str, level: int, step: int | None = None) -> None:
        """Record what happened in a full step, by default the next one, and log it if it is new."""
        step = self.next_step if step is None else step
        if self.ledger.record(step, reason):
            logger.log(level, "HybridPredict, full step %d: %s.", step, reason)

    def log_left_out(self) -> None:
        """Log once what is left to the optimizer, and whether nothing can be predicted."""
        reasons = set(self.groups.left_out)
        if self.policy.schedule.planned and not self.policy.judged:
            reasons.add(NOTHING)
        for reason in sorted(reasons - {event["reason"] for event in self.ledger.events}):
            self.record_event(reason, logging.WARNING)

    def apply_budget(self, step: int | None = None) -> None:
        """Limit the operations of corrections to ``max_overhead``, once a full step was counted.

        The result is logged if the number of a full ``step`` is given.
        """
        ledger = self.ledger
        groups = self.groups
        limit = self._config.max_overhead
        if limit and not ledger.flops_per_step:
            return
        full_step = (ledger.flops_per_step or 0) / processes.size()
        operations = groups.apply_budget(budget.budget(full_step, limit))
        period = groups.period
        if operations or period is None:  # else the update does not count them
            ledger.flops_per_correction = round(operations * processes.size())
        self.remedy = ""
        if period is None:
            needed = groups.operations(budget.LONGEST_PERIOD)
            self.remedy = budget.fitting(needed, full_step)
            if step is not None and not self.futile:
                self.record_event(f"{budget.NONE_FIT} {self.remedy}", logging.INFO, step)
        elif period > 1 and step is not None:
            text = f"each matrix is corrected in one of {period} full steps"
            event = f"{text}, which max_overhead={limit:g} allows"
            self.record_event(event, logging.INFO, step)

    def decide_kinds(self, step: Step, loss: object, index: int | None = None) -> None:
        """Decide the kinds before an update of optimizer ``index`` in the first full step.

        At its end, ``index`` is None, and what no loss has shown is decided by names.
        """
        kinds = self.kinds
        if not kinds.pending:
            return
        kinds.observe(loss)
        updating = {*step.calls} if index is None else {*step.calls, index}
        if not updating:
            return
        last = len(updating) == len(self.policy.limits.norms)
        changed, event = kinds.decide(step.with_gradient, last=last, late=index is None)
        if changed:
            self.groups.regroup()
            self.log_left_out()
        if event:
            self.record_event(event, logging.INFO, step.number)
        if not kinds.pending:
            self._mapper.list_buffers()
            logger.info("HybridPredict, full step %d: %s.", step.number, kinds.describe())

    def validate(self, metric: str, value: float, *, larger_is_better: bool) -> None:
        """Take in a validation: keep the best one, and see whether the run overfits."""
        self.read()
        ledger = self.ledger
        policy = self.policy
        overfitted = policy.overfits
        if ledger.best is not None and ledger.best["metric"] != metric:
            text = f"validations have another metric from now on, {metric}"
            self.record_event(f"{text} in place of {ledger.best['metric']}", logging.WARNING)
            ledger.best = None
            policy.overfitting = Overfitting()
            overfitted = False
        ledger.keep_best(metric, value, larger_is_better=larger_is_better)
        policy.validate(-value if larger_is_better else value)
        if policy.overfits and not overfitted:
            event = f"{OVERFITS}: {ledger.best_validation}, now {value:.4g}"
            self.record_event(event, logging.WARNING)
        elif overfitted and not policy.overfits:
            self.record_event(f"{metric} is the best again", logging.INFO)

    def set_length(self, steps: int) -> None:
        """Plan the rest of a run whose length has changed on the way."""
        if self.policy.set_length(steps):
            self.record_event(RENEWED, logging.WARNING)

    def add(self, step: Step, *, stop: bool, last: bool) -> None:
        """Add the measurements of a closed full step, and read them if it is time.

        Nothing waits for a device, unless a window has closed, predicted steps were undone, many
        full steps are unread, or the run ends. ``stop`` is whether this rank was asked to.
        """
        rest = step.rest(stop=stop)
        self._unread.append((step, rest))
        undone = step.prediction is not None and step.prediction.held
        many = len(self._unread) >= MOST_UNREAD
        if on_host(rest.sums["head"]) or step.closed or undone or many or last:
            self.read()

    def read(self, *deciding: Measurement) -> Numbers:
        """Read all measurements so far, with those that decide, and return the last numbers."""
        unread = self._unread
        self._unread = []
        measured = [*(rest for _, rest in unread), *deciding]
        numbers = read(measured) if measured else []
        for (step, _), found in zip(unread, numbers, strict=False):
            step.take(found)
            self._learn(step)
        return numbers[-1] if numbers else {}

    def _learn(self, step: Step) -> None:
        self._stop |= step.stop
        made = step.prediction
        predicted = {} if made is None else made.shown(step.slopes)
        seen = Outcome(
            step.number,
            [step.norm(k) for k in range(len(self.policy.limits.norms))],
            loss=step.loss,
            warmup=step.phase is Phase.WARMUP,
            windows=step.windows,
            **predicted,
        )
        for event, level in self.policy.learn(seen).items():
            self.record_event(event, level, step.number)
        if step.windows and self.policy.predicting is not None:
            self.ledger.skills = self.policy.predicting.summary

    def end(self) -> None:
        """Free all memory; the rest of the run is plain training."""
        self.plain = True
        self._unread.clear()
        self.groups.free()

    def advance(self, step: Step) -> StepRecord:
        """Count a full step and its predicted steps, and return its record."""
        ledger = self.ledger
        made = step.prediction
        left = max(0, self.policy.schedule.total - ledger.steps)
        ticks = 1
        self.count_undone(step)
        if made is not None and not made.held:
            ledger.count_predicted(made.count, made.length)
            ticks += made.count
        ledger.full_steps += 1
        ledger.steps = ledger.full_steps + ledger.predicted_steps  # also after an interrupt
        ledger.corrected_steps += step.corrected
        ticks = min(ticks, left)
        if not ticks:
            self.record_event(OVER, logging.WARNING, step.number)
        if (policy := self.policy.predicting) is not None:
            policy.count_full_step()
            ledger.skill = policy.skill.mean if policy.skill.known else ledger.skill
        stop = self._stop or step.stop
        self._stop = False
        return StepRecord(
            step.number,
            step.phase,
            ticks,
            step.predicted,
            None if made is None else made.verdict,
            skill=ledger.skill,
            loss=step.loss,
            gradients=step.info,
            length=None if made is None else made.length,
            stop=stop,
        )

    def count_undone(self, step: Step) -> None:
        """Count the predicted steps of a full step that is over, if they do not stand."""
        if step.prediction is not None and step.prediction.held:
            self.ledger.undone_steps += step.predicted

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the state to resume from, as primitives and new tensors.

        Sharded tensors are gathered if ``whole``, and else saved as local shards.
        """
        self.read()
        return self._saved(whole=whole)

    def _saved(self, *, whole: bool) -> dict[str, Any]:
        state = {
            "version": STATE_VERSION,
            "names": list(self._mapper.names),
            "kinds": self._mapper.found,
            "undecided": self.kinds.pending,
            "ranks": processes.size(),
            "total": self.policy.schedule.total,
            "plain": self.plain,
            "ledger": self.ledger.summary(),
            "tensors": self.groups.state_dict(whole=whole),
            "policy": self.policy.state_dict(),
        }
        return cloned(state)

    def load_state_dict(self, state: dict[str, Any], steps: int | None = None) -> None:
        """Load a state of :meth:`state_dict`; see `HybridEngine.load_state_dict`."""
        with reading():
            check_state(state)
            names = set(state["names"])
        if names and names.isdisjoint(self._mapper.names):
            text = f"state: expected parameters of this model, got {sorted(names)[:3]}."
            raise CheckpointError(f"{text} The checkpoint belongs to another model.")
        # No rank waits for another one in here, which may have failed to read its state.
        current = self._saved(whole=False)
        plain = self.plain
        unread = self._unread

        def restore() -> None:
            self.plain = plain
            self._load(current, None)
            self._unread = unread

        with all_or_nothing(restore):
            self._load(state, steps)
        if self.plain:
            self.end()

    def _load(self, state: dict[str, Any], steps: int | None) -> None:
        self._unread = []
        self._stop = False
        self.kinds.load(state["kinds"], pending=state["undecided"])
        self.ledger.load(state["ledger"])
        self.plain = self.plain or state["plain"]
        if state["ranks"] != processes.size():  # over which operations were counted
            self.ledger.flops_per_step = self.ledger.flops_per_correction = None
        self.groups.forget()
        self.apply_budget()
        if steps is not None and steps != self.ledger.steps:
            self._continue_at(steps)
            return
        dropped = [] if self.plain else self.groups.load_state_dict(state["tensors"])
        self.apply_budget()  # again, with the loaded number of updates per optimizer
        if not (self.plain or self.policy.load_state_dict(state["policy"], dropped)):
            dropped.append("loss and gradient norms")
        for part in dropped:
            reason = f"what was saved of {part} does not fit this run and was dropped"
            self.record_event(reason, logging.WARNING)
        for what, then, now, level in (
            ("run's length", state["total"], self.policy.schedule.total, logging.INFO),
            ("number of ranks", state["ranks"], processes.size(), logging.WARNING),
        ):
            if then != now:
                self.record_event(f"the {what} changed from {then} to {now}", level)

    def _continue_at(self, steps: int) -> None:
        """Continue at a number of steps counted by the caller; steps since then were full steps."""
        self.policy.forget()
        ledger = self.ledger
        ledger.best = None
        reason = "the run went on without the plug-in before"
        if steps < ledger.steps:
            ledger.load(SavingsLedger().summary())
            reason = "the run starts before the saved state, which was dropped"
        ledger.steps = steps
        ledger.full_steps = steps - ledger.predicted_steps
        self.record_event(reason, logging.WARNING)


def on_host(numbers: Tensor) -> bool:
    """Return whether numbers can be read without waiting for a device."""
    return numbers.device.type == "cpu"


def check_state(state: Any) -> None:
    """Raise CheckpointError unless a value is the saved state of an engine of this version."""
    version = state.get("version") if isinstance(state, dict) else None
    if version != STATE_VERSION:
        got = reprlib.repr(state) if version is None else f"version {version!r}"
        raise CheckpointError(
            f"state: expected one that the plug-in has saved, of version {STATE_VERSION}, got "
            f"{got}. Resume with the version of hybrid_predict that wrote it."
        )


def cloned(value: Any) -> Any:
    """Return a copy of nested containers in which every tensor is a detached clone."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    return [cloned(v) for v in value] if isinstance(value, (list, tuple)) else value
