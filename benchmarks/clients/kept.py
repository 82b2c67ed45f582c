"""The batches of a package's own loop, of which predicted steps drop some."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, final

from torch import Tensor

from hybrid_predict import HybridEngine


@final
class Steps:
    """The full steps of an engine in a loop that drops a batch for each predicted step."""

    def __init__(self, engine: HybridEngine) -> None:
        self.engine = engine
        self._drop = 0

    def begin(self) -> bool:
        """Begin a full step with the next batch; return False if the batch is to be dropped."""
        if self._drop or self.engine.done:
            self._drop -= 1
            return False
        self.engine.before_step()
        return True

    def end(self, loss: Tensor | None) -> None:
        """End the full step, after the update."""
        self._drop += self.engine.after_step(loss).ticks - 1


@final
class KeptBatches:
    """Batches of an epoch without those of predicted steps; a full step surrounds each.

    ``over`` changes the batches from epoch to epoch. The loop must have updated before it asks for
    the next batch, and should pass each loss to ``see``.
    """

    def __init__(self, engine: HybridEngine) -> None:
        self.engine = engine
        self._steps = Steps(engine)
        self._batches: Collection[Any] = ()
        self._loss: Tensor | None = None

    def over(self, batches: Collection[Any]) -> KeptBatches:
        """Return these batches, of the next epoch."""
        self._batches = batches
        return self

    def see(self, loss: Tensor) -> Tensor:
        """Pass a loss to the engine, and return it."""
        self.engine.observe_loss(loss)
        self._loss = loss.detach()
        return loss

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            if self._steps.begin():
                yield batch
                self._steps.end(self._loss)
