"""The engine: predicted steps before a full step, verdict and correction inside it."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean
from time import perf_counter
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.config import HybridConfig, tells_unknown_names
from hybrid_predict.errors import (
    ConfigError,
    HybridPredictError,
    UsageError,
    raise_interrupt,
    summary,
)
from hybrid_predict.ledger import FELL_BACK, SavingsLedger, StepRecord
from hybrid_predict.model.cost import OperationCounter
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.optimizers.wrapper import OptimizerWrapper
from hybrid_predict.policy.policy import INTERRUPTED
from hybrid_predict.policy.schedule import Schedule, phase
from hybrid_predict.ranks import processes, shards
from hybrid_predict.state import State
from hybrid_predict.step import UNCOUNTED, Step

logger = processes.rank_zero_logger(__name__)


@final
@tells_unknown_names
class HybridEngine:
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
            or another engine follows the same optimizer.

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
        config: HybridConfig | None = None,
    ) -> None:
        if not isinstance(config, HybridConfig):
            remedy = "Pass config=HybridConfig(total_steps=...), the run's length in steps."
            raise ConfigError("config", "a HybridConfig", type(config).__name__, remedy)
        model = shards.unwrapped(model)
        if not isinstance(optimizer, OptimizerWrapper):
            optimizer = OptimizerWrapper(optimizer)
        self.optimizer = optimizer
        parameters = optimizer.parameters()
        self.mapper = ParameterMapper(model, parameters, config.kinds, optimizer.numbers())
        self.config = config
        self._model = model
        kind = parameters[0].device.type if parameters else "cpu"
        self._device_type = kind if torch.amp.is_autocast_available(kind) else "cpu"
        self._state = State(self.mapper, optimizer, config)
        self._policy = self._state.policy
        self._groups = self._state.groups
        self._open: dict[str, Step] = {}
        self._operations = OperationCounter(self.ledger)
        self._handles: list[Any] = []
        if not self._state.plain:
            processes.check_same(self.mapper.names, self.mapper.shapes, self.config)
            self._state.log_left_out()
            if not self._groups.idle:
                self._handles += optimizer.attach(weakref.ref(self))
        attached = self._open, self._handles, self._operations
        self._finalizer = weakref.finalize(self, _release, *attached)
        self._finalizer.atexit = False

    @property
    def schedule(self) -> Schedule:
        """The run's schedule: its length, and how many of its steps are planned as predicted."""
        return self._policy.schedule

    @property
    def ledger(self) -> SavingsLedger:
        """The run's ledger: the steps that it has taken, and what they have cost and saved."""
        return self._state.ledger

    @property
    def done(self) -> bool:
        """Whether the run has ended; what follows is plain training.

        It has taken ``total_steps`` steps, or overfits with ``on_overfit="stop"``.
        """
        return self._state.done

    @property
    def overfits(self) -> bool:
        """Whether validations show that the run overfits, unless ``on_overfit`` is "ignore"."""
        return self._policy.overfits

    @property
    def in_step(self) -> bool:
        """Whether a full step is open, between ``before_step`` and ``after_step``."""
        return self._step is not None

    @property
    def position(self) -> int:
        """Index of the next step, from 0, if the predicted steps of an open full step stand."""
        return self.ledger.steps + (0 if self._step is None else self._step.predicted)

    @property
    def _step(self) -> Step | None:
        return self._open.get("step")

    def before_step(self) -> None:
        """Open a full step, and take the predicted steps that are due before it.

        Raises:
            UsageError: If an optimizer has updated since the last ``before_step``, and
                ``after_step`` was not called.
        """
        started = perf_counter()
        self.abandon()
        state = self._state
        step = self._open["step"] = Step(state.next_step, self.optimizer)
        step.watched = bool(self._handles) and not state.over
        if step.watched:
            with self._contained(step):
                self.optimizer.forget_calls()
                if self._groups.refresh():  # parameters were frozen, unfrozen or added
                    state.log_left_out()
                    state.apply_budget(step.number)
                self._predict(step)
                state.kinds.open(self.optimizer)
        at = self.ledger.steps
        policy = self._policy.predicting
        waits = policy is not None and policy.awaits_skill
        step.phase = phase(self.schedule, at, step.predicted, waiting=waits, plain=state.over)
        step.opened_at = perf_counter()
        step.predict_seconds = step.opened_at - started
        if step.watched:
            self._operations.start(self._model, state.kinds.follower)

    def _predict(self, step: Step) -> None:
        policy = self._policy.predicting
        if policy is None or self.config.shadow or policy.pausing(step.number):
            return
        count = policy.due(self.position)
        step.prediction = self._groups.predict(count, policy, step.calls) if count else None
        moves = step.prediction is not None
        if event := policy.shortfall(self.position, count, moves=moves):
            self._state.record_event(event, logging.INFO, step.number)
        if step.prediction is not None:
            step.prediction.take()

    def observe_loss(self, loss: Tensor | float) -> None:
        """Pass the loss, which the verdict may need, before an update that is given no closure.

        A 0-dim tensor is only read by a verifying step.
        """
        if (step := self._step) is not None:
            step.observe_loss(loss)
            self.observe_graph(loss)

    def observe_graph(self, loss: Tensor | float) -> None:
        """Pass a loss that shows the kinds of parameters, before or after its backward pass."""
        if (step := self._step) is not None and step.watched:
            with self._contained(step):
                self._state.kinds.observe(loss)

    def before_update(self, index: int, loss: object) -> None:
        """Handle the hook right before optimizer number ``index`` updates its parameters."""
        step = self._step
        started = perf_counter()
        if step is None or not step.watched or step.active not in (None, index):
            return
        if step.active == index:  # its last call has raised
            self.optimizer.restore_gradients(index)
            step.reopen(index)
        step.active = index
        with self._contained(step, index), self._operations.correcting():
            options = self.optimizer.options()
            deciding = step.measure(index, self.mapper.by_id, options, loss)
            if deciding is not None:
                step.judge(index, self._state.read(deciding))
            self._state.decide_kinds(step, loss, index)
            if self._operations.counting and self._operations.report():
                self._state.apply_budget()  # before the first correction
            groups = self._groups
            # A dormant group has no memory.
            if index not in step.skipped and not (self._state.futile or groups.dormant):
                correct = groups.period is not None and not self._policy.overfits
                step.open_updates(groups.of(index), options, correct=correct)
        step.hook_seconds += perf_counter() - started

    def after_update(self, index: int) -> None:
        """Handle the hook right after optimizer number ``index`` has updated its parameters."""
        step = self._step
        started = perf_counter()
        updated = step is not None and step.active == index
        if step is not None and updated:
            step.count_update(index)
        self.optimizer.restore_gradients(index)
        if step is None or not updated:
            return
        with self._contained(step), self._operations.correcting():
            step.learn(index, self.optimizer.options())  # some set their rate in a step
            self.mapper.written()
            step.close_update(index)
        step.hook_seconds += perf_counter() - started

    def after_step(
        self, loss: Tensor | float | None = None, *, stop: bool | None = None
    ) -> StepRecord:
        """Close a full step: count it, learn from it, and update the ledger.

        Args:
            loss: The training loss of the step, or None. A tensor on a device is read later.
            stop: Whether this rank was asked to stop. All ranks pass it in every step, or never.

        Returns:
            The record of the step; call ``scheduler.step()`` ``record.ticks`` times.

        Raises:
            UsageError: If ``before_step`` was not called.
            ConfigError: If ``loss`` is not a tensor, a number or None.
        """
        step = self._step
        started = perf_counter()
        if step is None:
            text = "after_step() was called without before_step(). Call each once per full step."
            raise UsageError(text)
        if not (loss is None or isinstance(loss, (Tensor, int, float))):
            raise ConfigError("loss", "a tensor, a number or None", loss)
        counted = self._operations.end_step()
        try:
            if step.watched:
                with self._contained(step):
                    self._close(step, loss, counted=counted, stop=bool(stop))
        finally:
            self._open.clear()
        if not step.watched:
            step.observe_plain(loss, stop)
        record = self._state.advance(step)
        step.add_seconds(self.ledger, started, perf_counter())
        return record

    def _close(self, step: Step, loss: Tensor | float | None, *, counted: bool, stop: bool) -> None:
        state = self._state
        last = self.position + 1 >= self.schedule.total
        step.close(loss)
        self._groups.count_updates(step.calls, step.with_gradient)
        state.decide_kinds(step, loss)
        if counted:
            state.apply_budget(step.number)
        state.add(step, stop=stop, last=last)
        if reason := state.futile:
            self._fall_back(reason)

    def observe_validation(
        self, value: Tensor | float, metric: str = "val_loss", *, larger_is_better: bool = False
    ) -> None:
        """Pass the value of a validation, so that a run that overfits is seen.

        With several ranks all have to call it; the mean of their finite values counts, with the
        metric of the first rank that has one. Without any it does not count. The best value is in
        the ledger; ``on_overfit`` of :class:`HybridConfig` says what happens while a run overfits.

        Args:
            value: A number, or a 0-dim tensor, which is read.
            metric: Its name. Another name than before begins anew, which is an event.
            larger_is_better: Whether it is one like accuracy.

        Raises:
            ConfigError: If ``value`` is neither.
        """
        single = isinstance(value, Tensor) and value.numel() == 1
        if not (single or isinstance(value, (int, float))):
            raise ConfigError("value", "a number, or a tensor with one", value)
        told = processes.gather((metric, larger_is_better, float(value)))
        known = [each for each in told if math.isfinite(each[2])]
        if known:
            metric, larger_is_better, _ = known[0]
            mean = fmean(value for name, _, value in known if name == metric)
            self._state.validate(metric, mean, larger_is_better=larger_is_better)

    def abandon(self) -> None:
        """Leave the open full step, if any, before its update, and undo its predicted steps.

        Raises:
            UsageError: If an optimizer has updated since ``before_step``.
        """
        step = self._step
        if step is None:
            return
        if step.calls:
            text = "The optimizer has updated, but after_step() was not called."
            raise UsageError(f"{text} Call after_step(loss) after every optimizer.step().")
        reason = "a full step was left before its update"
        step.undo(reason)
        self._operations.reset()
        self._open.clear()
        self._state.count_undone(step)
        self._state.record_event(reason, logging.INFO, step.number)

    def detach(self) -> None:
        """Undo predicted steps that are not verified, and remove all hooks."""
        step = self._step
        self._finalizer()
        self._open.clear()
        if step is not None:
            self._state.count_undone(step)
        for group in self._groups:
            group.release()

    def __enter__(self) -> HybridEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UsageError(
            "HybridEngine: expected its state_dict() to be copied or pickled, got the object "
            "itself. Make another one for a copy of the model, and load the state."
        )

    @contextmanager
    def _contained(self, step: Step, coming: int | None = None) -> Iterator[None]:
        """Run code of the plug-in; if it fails, undo the predicted steps and fall back.

        Errors of this package (wrong arguments), those of a signal handler, and exceptions such as
        ``KeyboardInterrupt`` are raised again after the undo. With several ranks, every error is
        raised again, because the other ranks cannot know that this rank has fallen back and would
        wait for it forever. ``coming`` is the optimizer that is about to update. The code keeps its
        own types where the user's autocast is on, as when an optimizer steps inside of it.
        """
        casts = torch.is_autocast_enabled(self._device_type)
        try:
            with torch.autocast(self._device_type, enabled=False) if casts else nullcontext():
                yield
        except BaseException as error:
            step.undo(INTERRUPTED, coming)
            own = isinstance(error, HybridPredictError) or not isinstance(error, Exception)
            if own or processes.size() > 1:
                raise
            raise_interrupt(error)
            self._fall_back(f"the plug-in failed with {summary(error)}", error)

    def _fall_back(self, reason: str, error: BaseException | None = None) -> None:
        if self._step is not None:
            self._step.watched = False
        self._state.end()
        number = self._state.next_step
        event = f"{FELL_BACK}{reason}"
        self.ledger.record(number, event)
        logger.warning("HybridPredict, full step %d: %s.", number, event, exc_info=error)

    def _between_steps(self, call: str) -> None:
        if self._step is not None:
            raise UsageError(f"{call} was called inside a full step. Call after_step() first.")

    def set_length(self, steps: int) -> None:
        """Continue as a run of N steps, those that it has taken included, planned anew from there.

        Raises:
            UsageError: If a full step is open.
        """
        self._between_steps("set_length()")
        self._state.set_length(steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from; predicted steps that are not verified are undone."""
        step = self._step
        if step is not None:
            if step.calls:
                self._state.record_event(UNCOUNTED, logging.WARNING)
            if step.prediction is not None:
                step.prediction.withdraw()
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], steps: int | None = None) -> None:
        """Load a state of :meth:`state_dict` completely or, on an error, not at all.

        With the same model, optimizer and configuration the run continues bit for bit. Otherwise,
        parts that do not fit are dropped and logged.

        Args:
            state: The state.
            steps: Steps that the run has taken, if the caller counts them. If the state has another
                number, the run has continued without the plug-in: ``steps`` is used, and everything
                known about the movement of the weights is dropped.

        Raises:
            CheckpointError: If the state belongs to another model or version, or is damaged.
            UsageError: If a full step is open.
        """
        self._between_steps("load_state_dict()")
        self._state.load_state_dict(state, steps)


def _release(open_steps: dict[str, Step], handles: list[Any], operations: OperationCounter) -> None:
    operations.stop()
    try:
        for step in open_steps.values():
            step.undo("the engine was detached")
    finally:
        open_steps.clear()
        for handle in handles:
            handle.remove()
        handles.clear()
