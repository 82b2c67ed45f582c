"""The verifier: keeps measurements until they are read, and has them judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

from torch import Tensor

from hybrid_predict.accounts.saved import check_count, damaged
from hybrid_predict.verify.delayed_queue import DelayedQueue
from hybrid_predict.verify.descent import Evidence, weigh
from hybrid_predict.verify.judge import Judgement, Verdict, judge
from hybrid_predict.verify.measurement import Measurement, unpack
from hybrid_predict.verify.monitor import Monitor


@final
class Verifier:
    """Reads measurements ``lag`` steps late, and judges them by running baselines.

    Args:
        optimizers: Number of optimizers.
        lag: Number of full steps between a measurement and its reading.
        watch_loss: See :class:`HybridConfig`.
    """

    def __init__(self, optimizers: int, lag: int, watch_loss: bool) -> None:
        self.monitor = Monitor(optimizers, watch_loss)
        self.evidence = Evidence()
        self._queue = DelayedQueue(lag)

    @property
    def unread(self) -> int:
        """Number of predicted steps whose verdict is measured but not read yet."""
        return sum(tag["predicted"] for tag in self._queue.tags)

    def pausing(self, step: int) -> bool:
        """Whether no predicted steps are to be made before full step number ``step``."""
        return bool(self.evidence.ended) or self.monitor.pausing(step)

    def push(self, tag: dict[str, Any], values: Tensor) -> None:
        """Add the measurement of a full step."""
        self._queue.push(tag, values)

    def read(self, *, drain: bool) -> Iterator[tuple[Measurement, Judgement]]:
        """Yield the measurements that can be read, and their judgements.

        The caller applies each judgement and then calls :meth:`learn`.

        Args:
            drain: Whether to read all measurements, however recent.
        """
        while (item := self._queue.pop(drain)) is not None:
            measured = unpack(*item)
            yield measured, judge(measured)

    def learn(self, measured: Measurement, judgement: Judgement) -> None:
        """Add a full step to baselines and evidence, or pause predicted steps on an alarm."""
        if judgement.verdict is Verdict.STANDS and measured.slopes is not None:
            self.evidence = weigh(self.evidence, measured.slopes)
        if judgement.alarm:
            self.monitor.alarm(measured.step)
        else:
            loss, norms = float(measured.info.loss), list(measured.norms)
            self.monitor.add(loss, norms, warmup=measured.warmup)

    def resize(self, optimizers: int) -> None:
        """Set the number of optimizers; if it changes, the baselines start again."""
        if optimizers != len(self.monitor.norms):
            self.monitor = Monitor(optimizers, self.monitor.watch_loss)

    def discard(self) -> None:
        """Discard all measurements that are not read yet."""
        self._queue.load_state_dict([])

    def state_dict(self) -> dict[str, Any]:
        """Return baselines, evidence, and the measurements that are not read yet."""
        return {
            "monitor": self.monitor.state_dict(),
            "evidence": list(self.evidence),
            "queue": self._queue.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Load a state of :meth:`state_dict`.

        Returns:
            Whether it was loaded. A state with another number of optimizers is not.

        Raises:
            CheckpointError: If a number is missing or invalid.
        """
        if len(state["monitor"]["norms"]) != len(self.monitor.norms):
            return False
        evidence = _checked(state["evidence"])
        queue = [(tag, list(map(float, values))) for tag, values in state["queue"]]
        for tag, values in queue:
            _check(unpack(tag, values))
        self.monitor.load_state_dict(state["monitor"])
        self.evidence = evidence
        self._queue.load_state_dict(queue)
        return True


def _checked(saved: Sequence[float]) -> Evidence:
    known = len(saved) == len(Evidence._fields)
    if not (known and all(math.isfinite(x) and x >= 0.0 for x in saved)):
        raise damaged("finite evidence", saved)
    return Evidence(*map(float, saved))


def _check(measured: Measurement) -> None:
    """Check what a saved measurement says besides its numbers, as far as it is judged by it."""
    check_count("step", measured.step, 1)
    if not (isinstance(measured.warmup, bool) and isinstance(measured.held, str)):
        raise damaged("a measurement of a full step", (measured.warmup, measured.held))
    limits, count = measured.limits, 1 + len(measured.norms)
    if len(limits) != count or not all(isinstance(x, (int, float)) for x in limits):
        raise damaged(f"{count} limits of a full step", limits)
