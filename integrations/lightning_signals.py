"""Signals by which a cluster asks a Trainer to save or to stop, handled between full steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.integrations.lightning_packages import TrainerCallback
from hybrid_predict.ranks import processes

if TYPE_CHECKING:
    import lightning.pytorch as pl


@final
class HeldSignals(TrainerCallback):
    """Holds back signals that Lightning handles, until a full step has ended.

    Lightning's handler of SLURM's signal saves a checkpoint wherever the run is, also between an
    update and the end of its batch, where no counter fits the weights. With several ranks this
    handler and that of SIGTERM wait for the other ranks, which may be elsewhere; so all ranks call
    them after the same full step. A rank that hears the signal only later has answered it already.
    A single rank that validates calls them at once.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._held: set[int] = set()
        self._answered: set[int] = set()
        self._agreed = self._last = False
        environment: Any = trainer._accelerator_connector.cluster_environment
        numbers: list[Any] = [signal.SIGTERM] if processes.size() > 1 else []
        if getattr(environment, "auto_requeue", False):
            numbers.append(getattr(environment, "requeue_signal", None))
        if threading.current_thread() is not threading.main_thread():
            numbers = []
        handlers = {number: signal.getsignal(number) for number in numbers if number is not None}
        self._handlers: dict[int, Any] = {n: call for n, call in handlers.items() if callable(call)}
        for number in self._handlers:
            signal.signal(number, self._receive)

    @property
    def held(self) -> bool:
        """Whether this rank holds a signal."""
        return bool(self._held)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number in self._answered:
            self._answered.discard(number)
        elif self._trainer.validating and processes.size() == 1:
            self._handlers[number](number, frame)
        else:
            self._held.add(number)

    def agree(self, stop: bool, *, last: bool) -> None:
        """Take what all ranks have agreed on after a full step, and whether it is the last one."""
        self._agreed = stop
        self._last = last

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Call the handlers after a full step, when all other callbacks have been called."""
        agreed, self._agreed = self._agreed, False
        if self._last:
            self._last = False
            self.finish()  # from now on ranks do not agree
        elif agreed if processes.size() > 1 else not trainer.fit_loop._should_accumulate():
            self._handle()

    def finish(self) -> None:
        """Call the handlers of what is held at the end of training, and release the signals."""
        self.release()
        if processes.total(len(self._held)):
            self._handle()

    def _handle(self) -> None:
        """Call the handlers of the signals that any rank holds; every rank has to call it."""
        heard = self._held.copy()
        for number in sorted(set().union(*processes.gather(heard))):
            if number not in self._held:
                self._answered.add(number)
            self._held.discard(number)
            self._handlers[number](number, None)

    def release(self) -> None:
        """Give the signals back to Lightning."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)
