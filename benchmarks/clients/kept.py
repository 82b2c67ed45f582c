"""The engine in a package's own loop, which drops a batch for each predicted step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, final

from torch import Tensor

from benchmarks.clients import Callbacks
from hybrid_predict import HybridEngine, HybridPredict


def engine_for(callback: HybridPredict, model: Any, optimizer: Any, steps: int) -> HybridEngine:
    """Return an engine for a package's own loop; the callback has its settings and its ledger."""
    callback.engine = HybridEngine(model, optimizer, callback.config.with_length(steps))
    return callback.engine


@final
class Steps:
    """The full steps of a loop; without a callback, every batch is one.

    A loop may iterate over it in place of the batches that ``over`` was given, to get those that
    are kept. It updates before it asks for the next batch, and passes each loss to ``see``.
    """

    def __init__(self, callbacks: Callbacks, model: Any, optimizer: Any, count: int) -> None:
        engines = [engine_for(callback, model, optimizer, count) for callback in callbacks]
        self.engine: Any = engines[0] if engines else None
        self._drop = 0
        self._batches: Collection[Any] = ()
        self._loss: Tensor | None = None

    def begin(self) -> bool:
        """Begin a full step with the next batch; return False if the batch is to be dropped."""
        if self.engine is None:
            return True
        if self._drop or self.engine.done:
            self._drop -= 1
            return False
        self.engine.before_step()
        return True

    def end(self, loss: Tensor | None) -> None:
        """End the full step, after the update."""
        if self.engine is not None:
            self._drop += self.engine.after_step(loss).ticks - 1

    def over(self, batches: Collection[Any]) -> Steps:
        """Return these batches, of the next epoch."""
        self._batches = batches
        return self

    def see(self, loss: Tensor) -> Tensor:
        """Pass a loss to the engine, and return it."""
        if self.engine is not None:
            self.engine.observe_loss(loss)
            self._loss = loss.detach()
        return loss

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if self.begin():
                yield batch
                self.end(self._loss)
