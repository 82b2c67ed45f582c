"""The engine: predicted steps before a full step, verdict and correction inside it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.accounts.clock import Clock, Phase
from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.accounts.operations import OperationCounter
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine.attachment import Uncopied, claim, detach, unclaim
from hybrid_predict.engine.containment import contained
from hybrid_predict.engine.record import StepRecord
from hybrid_predict.engine.run import Run
from hybrid_predict.engine.step import Step
from hybrid_predict.errors import ConfigError, UsageError
from hybrid_predict.forecast.forecaster import Forecaster
from hybrid_predict.tensors import ranks, shards
from hybrid_predict.torch.buffers import BufferTracker
from hybrid_predict.torch.optimizer import OptimizerWrapper
from hybrid_predict.torch.parameters import ParameterMapper

logger = ranks.rank_zero_logger(__name__)


@final
class HybridEngine(Uncopied):
    """Corrects the updates of any torch training loop, and takes predicted steps between them.

    Between ``after_step`` and the next ``before_step``, all weights are verified by a full step. If
    a loop ends early, predicted steps that are not verified are undone: by :meth:`detach`, at the
    end of a ``with`` block, or when the engine is garbage-collected.

    Args:
        model: The model to train.
        optimizer: Its optimizer, a list of optimizers, or an :class:`OptimizerWrapper`.
        config: The configuration; ``total_steps`` is required.

    Raises:
        ConfigError: If an argument is invalid.
        UnsupportedSetupError: If an optimizer, the sharding or the process group is not supported,
            or another engine trains the same parameters.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(4, 4)
        >>> optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        >>> engine = HybridEngine(net, optimizer, HybridConfig(speedup=1.5, total_steps=90))
        >>> while not engine.done:
        ...     engine.before_step()
        ...     loss = net(torch.ones(8, 4)).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     record = engine.after_step(loss)
        >>> engine.ledger.full_steps + engine.ledger.predicted_steps
        90
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | OptimizerWrapper,
        config: HybridConfig,
    ) -> None:
        if not isinstance(config, HybridConfig):
            raise ConfigError("config", "a HybridConfig", type(config).__name__)
        model = shards.unwrapped(model)
        if not isinstance(optimizer, OptimizerWrapper):
            optimizer = OptimizerWrapper(optimizer)
        self.optimizer = optimizer
        parameters = optimizer.parameters()
        self.mapper = ParameterMapper(model, parameters, config.kinds, optimizer.owners())
        on_host = all(p.device.type == "cpu" for p in parameters if p.requires_grad)
        lag = config.lag if config.lag is not None else (0 if on_host else 4)
        self.config = replace(config, lag=lag)
        self._model = model
        self._run = Run(self.mapper, optimizer, self.config)
        if self.clock.shortfall:
            logger.warning("%s", self.clock.shortfall)
        self._step: Step | None = None
        self._operations = OperationCounter(self.ledger)
        self._buffers = BufferTracker(model)
        self._open: dict[str, Step] = {}
        self._handles: list[Any] = []
        if config.enabled:
            ranks.check_same(self.mapper.names, [tuple(p.shape) for p in parameters], self.config)
            claim(self, self.optimizer.parameters())
            self._run.log_left_out()
            if not self._forecaster.idle:
                self._handles += optimizer.attach(weakref.ref(self))
        attached = (self._open, self._handles, self._operations)
        self._finalizer = weakref.finalize(self, detach, *attached)
        self._finalizer.atexit = False

    @property
    def clock(self) -> Clock:
        """The run's clock: its progress, and which of its steps are planned as predicted steps."""
        return self._run.clock

    @property
    def ledger(self) -> SavingsLedger:
        """The run's ledger: what it has cost and saved."""
        return self._run.ledger

    @property
    def _forecaster(self) -> Forecaster:
        return self._run.forecaster

    @property
    def done(self) -> bool:
        """Whether the run has taken ``total_steps`` steps; what follows is plain training."""
        return self.clock.done

    @property
    def in_step(self) -> bool:
        """Whether a full step is open, between ``before_step`` and ``after_step``."""
        return self._step is not None

    @property
    def _watching(self) -> bool:
        return bool(self._handles) and self._finalizer.alive and not self.clock.over

    def before_step(self) -> None:
        """Open a full step, and take the predicted steps that are due before it.

        Raises:
            UsageError: If an optimizer has updated since the last ``before_step``, and
                ``after_step`` was not called.
        """
        started = perf_counter()
        self.abandon()
        self.clock.unread = self._run.verifier.unread
        step = self._step = Step(self.clock.full_steps + 1, self.optimizer, self._buffers)
        self._open["step"] = step
        if self._watching:
            with self._contained(step):
                self.optimizer.forget_calls()
                if self._forecaster.refresh():  # parameters were frozen, unfrozen or added
                    claim(self, self.optimizer.parameters())
                    self._run.log_left_out()
                self._buffers.watch()
                self._predict(step)
                step.set_limits(self._run.verifier.monitor)
                self._run.kinds.open()
        step.phase = self.clock.phase(step.predicted, waiting=self._forecaster.awaits_skill)
        self.clock.predict(step.predicted)
        step.opened_at = perf_counter()
        step.predict_seconds = step.opened_at - started
        if self._watching:
            self._operations.start(self._model)

    def observe_loss(self, loss: Tensor | float) -> None:
        """Pass the loss before the optimizer updates, so that the verdict can depend on it.

        It is not needed for optimizers that are stepped with a closure.

        Args:
            loss: The training loss, 0-dim tensor or number. A tensor is only read if a verdict is
                due.
        """
        if self._step is not None:
            self._step.observe_loss(loss)
            self.observe_graph(loss)

    def observe_graph(self, loss: Tensor | float) -> None:
        """Pass a loss whose autograd graph shows the kinds of parameters, before the first update.

        Args:
            loss: A loss with its autograd graph, before or after its backward pass.
        """
        if self._step is not None and self._watching:
            with self._contained(self._step):
                self._run.kinds.observe(loss)

    def after_step(self, loss: Tensor | float | None = None) -> StepRecord:
        """Close a full step: read verdicts, advance the clock and update the ledger.

        Args:
            loss: The training loss of the step, or None. A tensor is read ``lag`` full steps later.

        Returns:
            The record of the step; call ``scheduler.step()`` ``record.ticks`` times.

        Raises:
            UsageError: If ``before_step`` was not called.
            ConfigError: If ``loss`` is not a tensor, a number or None.
        """
        step, started = self._step, perf_counter()
        if step is None:
            raise UsageError(
                "after_step() was called without before_step(). Call each once per full step."
            )
        if not (loss is None or isinstance(loss, (Tensor, int, float))):
            raise ConfigError("loss", "a tensor, a number or None", loss)
        counted = self._operations.end_step()
        try:
            if self._watching:
                with self._contained(step):
                    step.close(loss)
                    self._forecaster.count_updates(step.number, step.calls)
                    if counted:
                        self._run.apply_budget(step.number)
                    self._run.verifier.push(*step.packed(step.phase is Phase.WARMUP))
                    self._run.decide_kinds(step, loss)
        finally:
            self._step = None
            self._open.clear()
        if self._watching:
            with self._contained(step):
                self._judge(drain=self.clock.closing)
        record = self._run.advance(step)
        step.add_seconds(self.ledger, started, perf_counter())
        return record

    def detach(self) -> None:
        """Undo predicted steps that are not verified, and remove all hooks."""
        step, self._step = self._step, None
        if step is not None:
            self._run.count_left(step)  # before the finalizer, which marks the step as undone
        self._finalizer()
        unclaim(self, self.optimizer.parameters())

    def __enter__(self) -> HybridEngine:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.detach()
        ranks.fail_together(error)

    def abandon(self) -> None:
        """Leave the open full step, if any, before its update, and undo its predicted steps.

        Raises:
            UsageError: If an optimizer has updated since ``before_step``.
        """
        step = self._step
        if step is None:
            return
        if step.has_updated:
            raise UsageError(
                "The optimizer has updated, but after_step() was not called. "
                "Call after_step(loss) after every optimizer.step()."
            )
        reason = "a full step was left before its update"
        step.undo(reason)
        self._operations.reset()
        if self._watching:
            self._forecaster.discard_updates()
        self._step = None
        self._open.clear()
        self._run.count_left(step)
        self._run.record_event(reason, logging.INFO, step.number)

    def open_update(self, index: int) -> None:
        """Handle the start of an update of optimizer ``index``; discard one of it that raised."""
        if self._step is not None and self._step.active == index:
            self.optimizer.restore_gradients(index)
            self._step.reopen(index)
            self._forecaster.discard_updates()

    def before_update(self, index: int, loss: object) -> None:
        """Handle the hook right before optimizer number ``index`` updates its parameters."""
        step, started = self._step, perf_counter()
        if step is None or not self._watching or step.active is not None:
            return
        step.active = index
        with self._contained(step, index), self._operations.correcting():
            step.measure(index, self.mapper.by_id, loss)
            self._run.decide_kinds(step, loss, index)
            good = step.good(index)
            if self._operations.counting and self._operations.report():
                self._run.apply_budget()  # before the first correction
            if good is not False and not self._run.futile:  # else nothing is allocated
                gate, options = self._forecaster.gate, self.optimizer.options(index)
                correct = not (self.clock.cooling or gate.locked)
                for group in self._forecaster.groups_of(index):
                    group.before_update(self.optimizer, options, good, correct=correct)
        step.hook_seconds += perf_counter() - started

    def after_update(self, index: int) -> None:
        """Handle the hook right after optimizer number ``index`` has updated its parameters."""
        step, started = self._step, perf_counter()
        watched = step is not None and self._watching and step.active == index
        if step is not None and watched:
            step.count_update(index)
        self.optimizer.restore_gradients(index)
        if step is None or not watched:
            return
        with self._contained(step), self._operations.correcting():
            good = step.good(index)
            options = self.optimizer.options()
            bound = self._forecaster.length_bound(options)
            for group in self._forecaster.groups_of(index):
                step.corrected |= group.after_update(options, good, bound, step.movement(index))
                step.add_learned(group)
            self.mapper.written()
            step.close_update(index)
            if step.number == 1:
                self.optimizer.check_state(index)
                self._forecaster.check(index, options)
        step.hook_seconds += perf_counter() - started

    def _predict(self, step: Step) -> None:
        """Take the predicted steps that are due."""
        due = self.clock.due
        if not due or self.config.shadow or self._run.verifier.pausing(step.number):
            return
        forecast = self._forecaster.forecast(self.optimizer.options())
        if forecast.delta.names:
            step.predict(self.mapper, forecast, due, self._forecaster.carries)
        elif self._forecaster.gate.closed:
            self._run.record_event(self._forecaster.gate.reason, logging.INFO, step.number)

    def _judge(self, *, drain: bool) -> None:
        """Apply the verdicts that can be read, and fall back if the plug-in does no good."""
        self._run.judge(drain=drain)
        if not self.clock.plain and (reason := self._run.futile):
            self._fall_back(reason)

    def _between_steps(self, call: str) -> None:
        if self._step is not None:
            raise UsageError(f"{call} was called inside a full step. Call after_step() first.")

    def replace_optimizer(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """Continue with other optimizers; what is known about the parameters is kept.

        Args:
            optimizer: The new optimizer, or list of optimizers, of the same model.

        Raises:
            UsageError: If a full step is open.
            UnsupportedSetupError: If an optimizer is not supported.
        """
        self._between_steps("replace_optimizer()")
        replacement = OptimizerWrapper(optimizer)
        if attached := bool(self._handles) and self._finalizer.alive:
            replacement.rules()  # refuses an optimizer before anything has changed
            claim(self, replacement.parameters())
            for handle in self._handles:
                handle.remove()
            self._handles[:] = replacement.attach(weakref.ref(self))
        self.optimizer = replacement
        self._run.replace_optimizer(replacement, regroup=attached)

    def _fall_back(self, reason: str, error: Exception | None = None) -> None:
        """Apply the verdicts that are measured, then continue the run as plain training."""
        self.clock.fall_back()
        with suppress(Exception) if error else nullcontext():
            self._run.judge(drain=True)
        self._forecaster.free()
        number = self.clock.full_steps + 1
        self.ledger.record(number, f"fell back to plain training: {reason}")
        text = "Full step %d: %s; all further steps are plain training."
        logger.warning(text, number, reason, exc_info=error)

    def _contained(self, step: Step, coming: int | None = None) -> AbstractContextManager[None]:
        """Undo the predicted steps and fall back on a failure, right before update ``coming``."""

        def undo(reason: str) -> None:
            step.undo(reason, coming)
            self._forecaster.discard_updates()

        return contained(undo, self._fall_back)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, without predicted steps that are not verified."""
        with self._step.saving(self._run.record_event) if self._step else nullcontext():
            return {**self._run.state_dict(), "bystanders": self._buffers.state_dict()}

    def load_state_dict(self, state: dict[str, Any], steps: int | None = None) -> None:
        """Load a state of :meth:`state_dict`.

        With the same model, optimizer and configuration the run continues bit for bit. Otherwise,
        parts that do not fit are dropped and logged.

        Args:
            state: The state.
            steps: Steps that the run has taken, if the caller counts them. If the state has another
                number, the run has continued without the plug-in: ``steps`` counts, and what was
                known about the movement of the weights is dropped.

        Raises:
            CheckpointError: If the state belongs to another model or version, or is damaged.
            UsageError: If a full step is open.
        """
        self._between_steps("load_state_dict()")
        self._run.load_state_dict(state, steps)
        self._buffers.load_state_dict(state["bystanders"])
        if not self._watching:  # no later step would read these verdicts
            self._run.judge(drain=True)
