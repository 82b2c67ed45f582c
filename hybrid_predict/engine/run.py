"""The state of a run between full steps, and how it is saved and resumed."""

from __future__ import annotations

import logging
from typing import Any, final

from hybrid_predict.accounts import saved
from hybrid_predict.accounts.clock import Clock
from hybrid_predict.accounts.ledger import SavingsLedger, percent
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine.deciding import KindDecision, listed
from hybrid_predict.engine.record import StepRecord
from hybrid_predict.engine.step import Step
from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.forecaster import Forecaster
from hybrid_predict.forecast.skill import FIRST
from hybrid_predict.tensors import ranks
from hybrid_predict.torch.optimizer import OptimizerWrapper
from hybrid_predict.torch.parameters import ParameterMapper
from hybrid_predict.updates.budget import (
    Shortage,
    budget,
    describe_block,
    describe_excess,
    shortage,
)
from hybrid_predict.verify.descent import ENDED
from hybrid_predict.verify.judge import Judgement, Verdict
from hybrid_predict.verify.measurement import Measurement
from hybrid_predict.verify.monitor import MOST_PAUSES
from hybrid_predict.verify.verifier import Verifier

logger = ranks.rank_zero_logger(__name__)

OVER = (
    "the loop goes on after the run's last step: this is plain training, and the schedule stays at "
    "its end (leave the loop when engine.done is True)"
)
"""Event of the ledger: full steps after ``total_steps``."""

NOTHING = "there is nothing to predict: no trained parameter is of a kind in predictors"
"""Event of the ledger: predicted steps are planned, but there is nothing to forecast."""

PATIENCE = 32
"""Number of full steps in which graphs are walked for optimizers that have not updated."""


@final
class Run:
    """The state of a run: clock, ledger, forecaster, and verdicts that are not read yet.

    Args:
        mapper: The model's parameters.
        optimizer: The optimizers that update them.
        config: The configuration, with ``total_steps`` and ``lag`` set.
    """

    def __init__(
        self, mapper: ParameterMapper, optimizer: OptimizerWrapper, config: HybridConfig
    ) -> None:
        self.ledger = SavingsLedger()
        self.forecaster = Forecaster(mapper, optimizer, config)
        self.kinds = KindDecision(mapper, optimizer)
        self.clock = Clock(config, self.steps_until_skill(config))
        self.verifier = Verifier(len(optimizer.optimizers), config.lag or 0, config.watch_loss)
        self._mapper, self._config, self._lag = mapper, config, config.lag
        self._read: list[tuple[Measurement, Judgement]] = []
        self.shortage: Shortage | None = None
        """What corrections lack if the budget leaves them weak; None if they lack nothing."""

    def steps_until_skill(self, config: HybridConfig) -> int:
        """Return the number of steps until skill can be known; 0 if predicted steps need none."""
        if not self.forecaster.gated:
            return 0
        return FIRST * self.forecaster.longest_window + (config.lag or 0)

    def record_event(self, reason: str, level: int, step: int | None = None) -> None:
        """Record an event in the ledger, and log it if it is new.

        Args:
            reason: What happened.
            level: Logging level.
            step: Number of the full step; None for the next one.
        """
        step = self.clock.full_steps + 1 if step is None else step
        if self.ledger.record(step, reason):
            logger.log(level, "Full step %d: %s.", step, reason)

    def replace_optimizer(self, optimizer: OptimizerWrapper, *, regroup: bool) -> None:
        """Continue with other optimizers.

        Args:
            optimizer: The other optimizers.
            regroup: Whether their updates are corrected and predicted.
        """
        if len(optimizer.optimizers) != len(self.verifier.monitor.norms):
            self.judge(drain=True)  # what was measured of the old ones is read first
            self.verifier.resize(len(optimizer.optimizers))
        self.kinds.follow(optimizer)
        if regroup:
            self.forecaster.replace_optimizer(optimizer)
            self.record_event("the optimizer was replaced", logging.INFO)
            self.log_left_out()

    def log_left_out(self) -> None:
        """Log once what is left to the optimizer, and whether nothing can be predicted."""
        reasons = set(self.forecaster.left_out)
        if self.clock.planned and not self.forecaster.predicts:
            reasons.add(NOTHING)
        for reason in sorted(reasons - {event["reason"] for event in self.ledger.events}):
            self.record_event(reason, logging.WARNING)

    def apply_budget(self, step: int | None = None) -> None:
        """Limit the operations of corrections to ``max_overhead``, once a full step was counted.

        Args:
            step: Number of the full step at which to log the result; None to log nothing.
        """
        ledger, limit = self.ledger, self._config.max_overhead
        if not ledger.flops_per_step:
            return
        allowed = budget(ledger.flops_per_step / ranks.size(), limit)
        operations, block = self.forecaster.apply_budget(allowed), self.forecaster.block
        if operations or block is not None:
            ledger.flops_per_correction = operations * ranks.size()
        self.shortage = None
        if self.forecaster.gate.weak:
            shapes, step_operations = self.forecaster.corrected_shapes, ledger.flops_per_step
            self.shortage = shortage(
                self.forecaster.operations, shapes, step_operations / ranks.size(), limit
            )
        if step is None:
            return
        if block is not None:
            updates = [g.plan.update for g in self.forecaster.groups if g.plan.update]
            self.record_event(describe_block(block, limit, updates), logging.INFO, step)
        if operations > allowed:
            share = percent(ledger.correction_share or 0.0)
            self.record_event(describe_excess(share, limit), logging.WARNING, step)

    def decide_kinds(self, step: Step, loss: object, index: int | None = None) -> None:
        """Decide the kinds of an optimizer's parameters before its first update.

        Args:
            step: The open full step.
            loss: Its loss; the graph is used if it has one.
            index: Number of the optimizer that is about to update. None at the end of the step,
                when kinds that no graph has shown are decided by names and shapes.
        """
        late, kinds = index is None, self.kinds
        kinds.observe(loss)
        due = sorted(kinds.pending & (set(step.calls) if index is None else {index}))
        for owner in due:
            changed, unseen = kinds.decide(owner, step.with_gradient, late=late)
            if changed:
                self.forecaster.regroup(owner)
                self.log_left_out()
            if unseen:
                reason = "the loss's graph does not tell heads from hidden matrices in"
                text = f"{reason} {listed(unseen)}: decided by names and shapes"
                self.record_event(text, logging.INFO, step.number)
        if late and kinds.pending and step.number >= PATIENCE:
            reason = "an optimizer has not updated yet: kinds of its parameters by names and shapes"
            self.record_event(reason, logging.INFO, step.number)
            kinds.pending.clear()
        if not kinds.pending and not kinds.logged:
            kinds.logged = True
            logger.info("Full step %d: %s.", step.number, kinds.describe(self._config))

    @property
    def futile(self) -> str:
        """Why the plug-in does no good in the rest of the run; empty if it may."""
        if self.verifier.monitor.risen:
            stands = "the training loss stands above that of the warm-up"
            return f"{stands} (a loss that need not fall: watch_loss=False)"
        gate, first = self.forecaster.gate, not self.clock.full_steps
        # Later, weights may have thawed that the first full step did not count.
        return gate.reason if gate.locked and first else ""

    def judge(self, *, drain: bool = False) -> None:
        """Read the measurements that are due, and apply their judgements.

        Args:
            drain: Whether to read all measurements, however recent.
        """
        for measured, judgement in self.verifier.read(drain=drain):
            self._read.append((measured, judgement))
            self.verifier.learn(measured, judgement)
            if measured.windows:
                self.forecaster.score(measured.windows)
                skills = self.forecaster.skills.items()
                self.ledger.skills = {kind: skill.summary() for kind, skill in skills}
            if judgement.alarm:
                undone = judgement.verdict is Verdict.UNDONE
                happened = "predicted steps were undone" if undone else "predicted steps pause"
                self.record_event(f"{happened}: {judgement.alarm}", logging.INFO, measured.step)
        if self.verifier.monitor.exhausted:
            reason = f"no more predicted steps: they were paused {MOST_PAUSES} times before"
            self.record_event(reason, logging.WARNING)
        if self.verifier.evidence.ended:
            self.record_event(ENDED, logging.WARNING)

    def advance(self, step: Step) -> StepRecord:
        """Advance clock and ledger by the verdicts that were read, and return the step's record."""
        read, self._read = self._read, []
        counts = dict.fromkeys(Verdict, 0)
        moved = 0.0
        for measured, judgement in read:
            if judgement.verdict is not None:
                counts[judgement.verdict] += measured.predicted
            if judgement.verdict is Verdict.STANDS:
                moved += measured.predicted * (measured.length or 0.0)
        if not step.reported:
            counts[Verdict.UNDONE] += step.predicted
        ticks = self.clock.advance(counts[Verdict.STANDS], counts[Verdict.UNDONE])
        if not ticks:
            self.record_event(OVER, logging.WARNING, step.number)
        ledger = self.ledger
        ledger.full_steps, ledger.steps = self.clock.full_steps, self.clock.steps
        ledger.predicted_steps = ledger.steps - ledger.full_steps
        ledger.corrected_steps += step.corrected
        ledger.undone_steps += counts[Verdict.UNDONE]
        ledger.predicted_length += moved
        if self.forecaster.skill.known:
            ledger.skill = self.forecaster.skill.mean
        known: dict[str, Any] = {}
        if read:
            measured, judgement = read[-1]
            known = {
                "read_step": measured.step,
                "verdict": judgement.verdict,
                "length": measured.length,
                "loss": float(measured.info.loss) if measured.loss_known else None,
                "gradients": measured.info if measured.info.norms else None,
            }
        return StepRecord(
            step.number, step.phase, ticks, step.predicted, skill=ledger.skill, **known
        )

    def count_left(self, step: Step) -> None:
        """Count the predicted steps of an abandoned full step: undone, unless they are verified."""
        self.clock.unread = self.verifier.unread
        self.ledger.undone_steps += 0 if step.stands else step.predicted

    def state_dict(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the state to resume from, as primitives and new tensors.

        Args:
            whole: Whether sharded tensors are gathered, or saved as local shards.
        """
        kinds, undecided = self.kinds.state_dict()
        state = {
            "version": saved.STATE_VERSION,
            "names": list(self._mapper.names),
            "kinds": kinds,
            "undecided": undecided,
            "lag": self._lag,
            "ranks": ranks.size(),
            "clock": {**self.clock.state_dict(), "unread": self.verifier.unread},
            "ledger": self.ledger.summary(),
            "tensors": self.forecaster.state_dict(whole=whole),
            "verdicts": self.verifier.state_dict(),
        }
        return saved.cloned(state)

    def load_state_dict(self, state: dict[str, Any], steps: int | None = None) -> None:
        """Load a state of :meth:`state_dict` completely or, on an error, not at all.

        Args:
            state: The state.
            steps: Number of steps taken, if the caller counts them; None for that of the state.

        Raises:
            CheckpointError: If the state belongs to another model or version, or is damaged.
        """
        saved.check_state(state)
        names = set(state["names"])
        if names and names.isdisjoint(self._mapper.names):
            raise CheckpointError(
                f"state: expected parameters of this model, got {sorted(names)[:3]}. "
                "The checkpoint belongs to another model."
            )
        own = self.state_dict(whole=False)
        with saved.all_or_nothing(lambda: self._load(own, None)):
            self._load(state, steps)

    def _resume(self, steps: int) -> None:
        """Continue at a number of steps counted by the caller; steps since then were full steps."""
        ledger, reason = self.ledger, "the run went on without the plug-in before"
        if steps < self.clock.steps:
            ledger.load(SavingsLedger().summary())
            reason = "the run starts before the saved state, which was dropped"
        self.clock.resume(steps, steps - ledger.predicted_steps)
        ledger.steps, ledger.full_steps = steps, self.clock.full_steps
        self.verifier.discard()
        self.record_event(reason, logging.WARNING)

    def _load(self, state: dict[str, Any], steps: int | None) -> None:
        before = self._mapper.kinds
        self.kinds.load_state_dict(state["kinds"], state["undecided"])
        if self._mapper.kinds != before:
            self.forecaster.regroup()
        self.clock.load_state_dict(state["clock"])
        self.ledger.load(state["ledger"])
        if state["ranks"] != ranks.size():  # operations were counted over another number of ranks
            self.ledger.flops_per_step = self.ledger.flops_per_correction = None
        self.apply_budget()
        if steps is not None and steps != self.clock.steps:
            self._resume(steps)
            return
        dropped = [] if self.clock.plain else self.forecaster.load_state_dict(state["tensors"])
        self.apply_budget()  # again, with the loaded number of updates per optimizer
        if not self.verifier.load_state_dict(state["verdicts"]):
            dropped.append("loss and gradient norms")
            self.clock.unread = 0
        for part in dropped:
            reason = f"what was saved of {part} does not fit this run and was dropped"
            self.record_event(reason, logging.WARNING)
        changes = {
            "run's length": (state["clock"]["total"], self.clock.total, logging.INFO),
            "number of ranks": (state["ranks"], ranks.size(), logging.WARNING),
        }
        for what, (before, now, level) in changes.items():
            if before != now:
                self.record_event(f"the {what} changed from {before} to {now}", level)
