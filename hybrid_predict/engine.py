"""The one loop body: forecast before a full step, verify and account after it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict import checkpoint, distributed
from hybrid_predict.config import HybridConfig
from hybrid_predict.containment import contained
from hybrid_predict.errors import ConfigError, UsageError
from hybrid_predict.forecaster import Forecaster
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.loss_check import LossCheck
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import BaseWeightsHook, ParameterMapper
from hybrid_predict.phases import LEARNING, Clock
from hybrid_predict.profiling import FlopProfile
from hybrid_predict.rollback import Rollback, let_go
from hybrid_predict.verification import Evaluate, ResidualScorer
from hybrid_predict.verifier import IDLE, Reading, Verifier, make_record
from hybrid_predict.window import StepRecord, Window, as_scalar

logger = distributed.rank_zero_logger(__name__)


class HybridEngine:
    """Makes forecasts before full steps of any torch training loop, and verifies them after.

    Between ``after_step`` and the next ``before_step`` the parameters are base weights. Leaving a
    loop early restores them too: with :meth:`detach`, at the end of a ``with`` block, or when the
    last reference to the engine goes away.

    Args:
        model: The model whose parameters are forecast.
        optimizer: Its optimizer, several of them, or an :class:`OptimizerWrapper`.
        config: The configuration; ``total_steps`` is required.

    Raises:
        ConfigError: If an argument is out of range.
        UnsupportedSetupError: If optimizer, sharding or ranks cannot work with forecasts.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(4, 4)
        >>> optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        >>> engine = HybridEngine(net, optimizer, HybridConfig(speedup=1.5, total_steps=30))
        >>> while not engine.done:
        ...     engine.before_step()
        ...     loss = net(torch.ones(8, 4)).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     record = engine.after_step(loss)
        >>> engine.ledger.full_steps
        20
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | OptimizerWrapper,
        config: HybridConfig,
    ) -> None:
        if not isinstance(config, HybridConfig):
            raise ConfigError("config", "a HybridConfig", type(config).__name__)
        model = distributed.unwrapped(model)
        if not isinstance(optimizer, OptimizerWrapper):
            optimizer = OptimizerWrapper(optimizer)
        self.optimizer = optimizer
        owners = self.optimizer.owners()
        self.mapper = ParameterMapper(model, self.optimizer.parameters(), config.kinds, owners)
        on_host = all(p.device.type == "cpu" for p in self.mapper.parameters)
        lag = config.lag if config.lag is not None else (0 if on_host else 4)
        self.config = replace(config, lag=lag)
        self.clock = Clock(self.config)
        if self.clock.shortfall:
            logger.warning("%s", self.clock.shortfall)
        self.ledger = SavingsLedger()
        self._model = model
        self._bound = False
        self._scorer = ResidualScorer()
        self._loss_check = LossCheck(model, self.mapper, config, self.ledger)
        self._forecaster = Forecaster(self.mapper, self.optimizer, self.config)
        self._verifier = Verifier(lag, self.ledger, config.patience)
        self._rollback = Rollback(model, self.mapper, self.optimizer)
        self._profile = FlopProfile(self.ledger, config.count_flops, self.clock.most_saved)
        self._window: Window | None = None
        handles: list[Any] = []
        if config.enabled:
            shapes = [tuple(p.shape) for p in self.mapper.parameters]
            distributed.check_same(self.mapper.names, shapes, self.config)
            handles = self.optimizer.attach(weakref.ref(self))
            handles.append(model.register_state_dict_post_hook(BaseWeightsHook(self.mapper)))
        self._release = weakref.finalize(self, let_go, self.mapper, handles, self._profile)
        self._release.atexit = False

    @property
    def done(self) -> bool:
        """Whether the run has reached ``total_steps`` equivalent steps."""
        return self.clock.done

    @property
    def horizons(self) -> dict[str, float]:
        """Current horizon per forecast parameter, in optimizer updates."""
        return dict(zip(self._forecaster.names, self._forecaster.horizons, strict=True))

    def multipliers(self) -> dict[str, float]:
        """Lengths of forecasts now over those of the updates they replace; ask on all ranks."""
        return self._forecaster.multipliers()

    @property
    def in_step(self) -> bool:
        """Whether a full step is under way, between ``before_step`` and ``after_step``."""
        return self._window is not None

    @property
    def _watching(self) -> bool:
        return self.config.enabled and self._release.alive and not self.clock.handed_over

    def before_step(self, evaluate: Evaluate | None = None, *, forecast: bool = True) -> None:
        """Open a full step; may move the weights to the forecast point.

        Args:
            evaluate: Forward pass on the coming batch, for the loss check of the configuration.
            forecast: ``False`` takes this full step at base weights whatever the phase.

        Raises:
            UsageError: If an optimizer has updated since the last ``before_step`` without an
                ``after_step``.
        """
        started = perf_counter()
        self.abandon()
        window = self._window = Window(self.clock.phase)
        if self._watching and not self._bound:
            self._profile.start(self._model)
        if self._watching and self._bound and window.phase in LEARNING:
            paused = self._verifier.monitor.pausing(self.clock.full_steps + 1)
            with self._contained(window):
                self._rollback.begin()
                if forecast and self.clock.forecast_due and not paused:
                    self._place(window, evaluate)
                self._rollback.before_forward(window.applied)
        window.opened_at = perf_counter()
        self.ledger.forecast_seconds += max(0.0, window.opened_at - started)

    def after_step(self, loss: Tensor | float | None = None) -> StepRecord:
        """Close a full step: verify its forecast, advance the clock, account.

        Args:
            loss: The step's training loss; a tensor is not read before its verdict is due.

        Returns:
            The step's record; step the learning-rate scheduler ``record.ticks`` times.

        Raises:
            UsageError: If there was no ``before_step``.
            ConfigError: If ``loss`` is no number.
        """
        window, started = self._window, perf_counter()
        if window is None:
            raise UsageError("after_step() needs a before_step() first, once per full step.")
        if not (loss is None or isinstance(loss, (Tensor, int, float))):
            raise ConfigError("loss", "a tensor, a number or None", loss)
        self._window = None
        self._profile.end_step(self.clock.full_steps + 1)
        reading = None
        if self._watching:
            with self._contained(window):
                self._rollback.settle(window, as_scalar(loss))
            with contained(self.mapper.settle, self._hand_over):
                reading = self._learn(window) if self._watching else None
        credited = reading is not None and reading.credited
        ticks = self.clock.advance(int(credited), reading.support if reading else 1.0)
        self.ledger.full_steps = self.clock.full_steps
        self.ledger.equivalent_steps = self.clock.equivalent_steps
        ended = perf_counter()
        self.ledger.full_seconds += max(0.0, started - window.opened_at - window.hook_seconds)
        self.ledger.forecast_seconds += max(0.0, ended - started + window.hook_seconds)
        return make_record(self.clock.full_steps, window, ticks, reading)

    def detach(self) -> None:
        """Restore base weights and remove every hook; no forecast is made afterwards."""
        window, self._window = self._window, None
        if window is not None and len(window.updated) < len(self.optimizer.optimizers):
            self._rollback.retreat(window)
        alive = self._release.alive
        self._release()
        if alive and self.done:  # a run that is saved and continued has yet to earn the rest
            self._verifier.drain(self._forecaster)

    def __enter__(self) -> HybridEngine:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.detach()
        distributed.fail_together(error)

    @contextmanager
    def base_weights(self) -> Iterator[None]:
        """Show the base weights inside the block, wherever in a full step it is entered."""
        with self.mapper.base_weights():
            yield

    def before_update(self, index: int, loss: object) -> None:
        """Called by the hooks when the gradients of optimizer ``index`` are final."""
        window, started = self._window, perf_counter()
        if window is None or not self._watching:
            return
        with self._contained(window):
            self._see(window, index, loss)
        window.hook_seconds += perf_counter() - started

    def after_update(self, index: int) -> None:
        """Called by the hooks when optimizer ``index`` has moved its parameters."""
        window, started = self._window, perf_counter()
        if window is None or not self._watching or index not in window.moving:
            return
        with self._contained(window):
            first = index not in window.updated
            window.updated.add(index)
            # Several ranks find out together, at the end of the full step.
            good = window.good() if window.applied and distributed.size() == 1 else None
            if first and self._bound and window.phase in LEARNING:
                seen = index, window.forecast, good, window.limits.norm
                with self._profile.forecasting(self._model, self._forecaster.period):
                    window.overlaps += self._forecaster.observe_update(*seen)
            if good is not None:
                self._rollback.undo(good, (index,))
            if len(window.updated) == len(self.optimizer.optimizers):
                self.mapper.settle()
        window.hook_seconds += perf_counter() - started

    def _see(self, window: Window, index: int, loss: object) -> None:
        """Measure the gradients, and keep what the update is about to change."""
        probe = self.optimizer.probe(index)
        if not len(probe):
            return  # the optimizer will not move anything, so the forecast stays unverified
        window.moving.add(index)
        window.norms.append(probe.total_norm())
        window.with_gradient |= probe.reached
        if isinstance(loss, Tensor):
            window.loss = as_scalar(loss)
        if index not in window.updated:
            window.measure(probe, [self.mapper.parameters[k] for k in self._forecaster.positions])
            if window.applied:
                self._rollback.before_update(index)
                self._forecaster.reconcile(index, window.delta, window.horizon)

    def _place(self, window: Window, evaluate: Evaluate | None) -> None:
        config, mean = self.config, self._forecaster.mean_horizon
        delta = window.delta = self._forecaster.forecast(closed_loop=not config.shadow)
        window.sampled = self.ledger.forecasts % config.sample_every == 0
        if config.shadow:
            window.horizon = mean
            if mean > 0 and not self._scorer.is_open:
                self._scorer.open(delta, round(mean), self._forecaster.roots)
        elif not mean > 0:
            window.refused = IDLE
        elif not all(map(math.isfinite, delta.factors)):
            window.refused = "the forecast was not finite"
        elif self._loss_check.rises(self.clock.full_steps + 1, delta, evaluate):
            window.refused = "the loss check failed"
        else:
            window.horizon, window.applied = mean, True
            window.supported = self._forecaster.supported_horizon
            window.compares = self._forecaster.compares
            window.limits = self._verifier.monitor.limits
            self._scorer.drop()
            self.mapper.apply(delta)

    def _learn(self, window: Window) -> Reading | None:
        """Show the step to the predictors, and judge the one whose turn it is."""
        movement = None
        wanted = self._scorer.is_open or self._forecaster.follows_displacements
        if not self._bound:
            self._bind(window)
        elif wanted and window.phase in LEARNING:
            movement = self.mapper.displacement(self._forecaster.positions)
            if not window.applied:
                window.residual = self._scorer.add(movement)
        self.ledger.forecasts += window.delta is not None
        self._verifier.push(self.clock.full_steps + 1, window, self.optimizer.take_late_counts())
        if movement is not None:
            self._forecaster.observe(movement, window.forecast)
        reading = self._verifier.read(self._forecaster)
        if self._verifier.unpaid:
            self._hand_over(self._verifier.unpaid)
        return reading

    def _bind(self, window: Window) -> None:
        """Leave out what has no gradient, as the first full step has shown."""
        parameters = self.mapper.parameters
        silent = [k for k, p in enumerate(parameters) if id(p) not in window.with_gradient]
        if window.updated and len(silent) < len(parameters):
            self.mapper.leave_out(silent)
            self._forecaster = Forecaster(self.mapper, self.optimizer, self.config)
            self._bound = True
            self._forecaster.tell_growing(self.ledger, self.clock.full_steps + 1)
            if not self._forecaster.positions:
                self._hand_over("no parameter has a predictor")
            # A forecast of a wrong form had better end the run here than after the warm-up.
            self._forecaster.forecast(closed_loop=not self.config.shadow)

    def _hand_over(self, reason: str, error: Exception | None = None) -> None:
        """Stop forecasting for good, once the forecasts under way are judged."""
        with suppress(Exception) if error else nullcontext():
            self._verifier.drain(self._forecaster)
        self._rollback.release()
        step = self.clock.full_steps + 1
        self.clock.hand_over()
        self.ledger.record(step, f"handed over to plain training: {reason}")
        text = "Full step %d: %s; from here on plain training, uncompressed."
        logger.warning(text, step, reason, exc_info=error)

    def _contained(self, window: Window) -> AbstractContextManager[None]:
        """Whatever fails in the block leaves no trace of the full step, and ends forecasting."""
        return contained(partial(self._rollback.retreat, window), self._hand_over)

    def abandon(self) -> None:
        """Leave the full step under way, if any, before its update, back at base weights.

        Raises:
            UsageError: If an optimizer has updated since ``before_step``.
        """
        window = self._window
        if window is None:
            return
        if window.updated:
            raise UsageError(
                "A full step was left after its update, or before_step() came twice with an "
                "update in between. Call after_step(loss) after every optimizer.step()."
            )
        self._window = None
        self._profile.stop()
        self._rollback.retreat(window)
        reason = "a full step was left before its update"
        if self.ledger.record(self.clock.full_steps, reason):
            logger.info("Full step %d: %s.", self.clock.full_steps, reason)

    def state_dict(self) -> dict[str, Any]:
        """Everything the future depends on, as primitives and new tensors.

        Inside a full step it describes the moment before it, in keeping with base weights.
        """
        state = {
            "version": checkpoint.STATE_VERSION,
            "names": list(self.mapper.names),
            "bound": self._bound,
            "lag": self.config.lag,
            "ranks": distributed.size(),
            "clock": self.clock.state_dict(),
            "ledger": self.ledger.summary(),
            "forecaster": self._forecaster.state_dict(),
            "verifier": self._verifier.state_dict(),
            "scorer": self._scorer.state_dict(),
            "rounding": self.mapper.rounding_state(),
        }
        return checkpoint.detached(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved run bit for bit, given the same model, optimizer and configuration.

        Raises:
            CheckpointError: If the state belongs to another model or version.
            UsageError: Inside a full step.
        """
        if self._window is not None:
            raise UsageError("load_state_dict() came inside a full step. Call after_step() first.")
        checkpoint.check_state(state, self.mapper.names)
        parts = (self.mapper, self.mapper.rounding, self.clock, self.ledger, self._scorer)
        with checkpoint.all_or_nothing(self, *parts, *self._verifier.parts):
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        kept = set(state["names"])
        self.mapper.leave_out(k for k, name in enumerate(self.mapper.names) if name not in kept)
        forecaster = self._forecaster = Forecaster(self.mapper, self.optimizer, self.config)
        forecaster.load_state_dict(state["forecaster"])
        self._bound = bool(state["bound"])
        lag = checkpoint.whole("lag", state["lag"])
        self.config = replace(self.config, lag=lag)
        self.clock.load_state_dict(state["clock"])
        self.ledger.load(state["ledger"])
        checkpoint.note_changes(state, self.clock.total, self.ledger)
        self._verifier.load_state_dict(state["verifier"], lag, len(forecaster.positions))
        self._scorer.load_state_dict(state["scorer"], self.mapper.values(forecaster.positions))
        self.mapper.load_rounding(state["rounding"])
