"""The measurements under way, and the judgements on those whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hybrid_predict.verify.delayed_queue import DelayedQueue
from hybrid_predict.verify.judge import Judgement, judge
from hybrid_predict.verify.measurement import Measurement, unpack
from hybrid_predict.verify.monitor import Monitor


class Verifier:
    """Reads measurements late, has them judged, and keeps the baselines that they are judged by.

    Args:
        optimizers: How many there are.
        lag: Full steps between a measurement and its reading.
    """

    def __init__(self, optimizers: int, lag: int) -> None:
        self.monitor = Monitor(optimizers)
        self._queue = DelayedQueue(lag)

    @property
    def unread(self) -> int:
        """Predicted steps whose verdict is measured but not read yet."""
        return sum(tag["predicted"] for tag in self._queue.tags)

    def push(self, tag: dict[str, Any], values: Tensor) -> None:
        """Take what one full step has measured."""
        self._queue.push(tag, values)

    def read(self, *, drain: bool) -> Iterator[tuple[Measurement, Judgement]]:
        """The full steps whose turn it is, with ``drain`` all of them, and the judgement on each.

        The caller applies it, and then lets the baselines :meth:`update_baselines` from it.
        """
        while (item := self._queue.pop(drain)) is not None:
            measured = unpack(*item)
            yield measured, judge(measured)

    def update_baselines(self, measured: Measurement, judgement: Judgement) -> None:
        """Let the baselines follow a full step, or predicted steps pause after an alarm."""
        if judgement.alarm:
            self.monitor.alarm(measured.step)
        else:
            loss, norms = float(measured.info.loss), list(measured.norms)
            self.monitor.add(loss, norms, warmup=measured.warmup)

    def resize(self, optimizers: int) -> None:
        """Follow another number of optimizers, with new baselines if it is another."""
        if optimizers != len(self.monitor.norms):
            self.monitor = Monitor(optimizers)

    def discard(self) -> None:
        """Drop the measurements under way."""
        self._queue.load_state_dict([])

    def state_dict(self) -> dict[str, Any]:
        """Baselines, and the measurements under way."""
        return {"monitor": self.monitor.state_dict(), "queue": self._queue.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Continue from a saved state.

        Returns:
            Whether it fits; one of another number of optimizers does not, and nothing is loaded.

        Raises:
            CheckpointError: If a number is missing or cannot be one.
        """
        if len(state["monitor"]["norms"]) != len(self.monitor.norms):
            return False
        queue = [(tag, list(values)) for tag, values in state["queue"]]
        for tag, values in queue:
            unpack(tag, values)
        self.monitor.load_state_dict(state["monitor"])
        self._queue.load_state_dict(queue)
        return True
