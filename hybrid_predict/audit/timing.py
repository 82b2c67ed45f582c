"""Times full steps of a model with the callback, and without it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch

from hybrid_predict.audit.meter import TrialEnd
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.report.slow_run import StepSeconds

_FIRST = 3
"""Full steps before the clock starts: they count operations, allocate and fill caches."""

_LEAST, _MOST = 2, 20
"""Smallest and largest number of full steps that are timed with the callback, and without it."""

_PATIENCE = 10.0
"""Seconds after which no further step of a kind is timed."""


class StepTimer(pl.Callback):
    """Ends a trial once it has timed full steps with the callback, then without it.

    The trial also ends with the last batch of an epoch, before validation and checkpoints. Time in
    the data loader counts.
    """

    def __init__(self, plugin: HybridPredict) -> None:
        self._plugin = plugin
        self._helped: list[float] = []
        self._plain: list[float] = []
        self._steps, self._most, self._last = 0, _MOST, 0.0

    @property
    def seconds(self) -> StepSeconds | None:
        """Least seconds of a full step, as other work only adds; None if too few fit an epoch."""
        if min(len(self._plain), len(self._helped)) < _LEAST:
            return None
        return StepSeconds(min(self._plain), min(self._helped))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Limit the steps of a kind, so that both fit into one epoch."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        self._most = int(max(_LEAST, min(_MOST, (steps - _FIRST) // 2)))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Time a full step that ends with this batch."""
        if self._plugin.ledger.full_steps > self._steps:
            self._steps = self._plugin.ledger.full_steps
            self._take(trainer.strategy.root_device)
        if trainer.is_last_batch or self._ended(self._plain):
            raise TrialEnd

    def _take(self, device: torch.device) -> None:
        """Take the time of the step that has just ended."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = perf_counter()
        if self._steps > _FIRST:
            block = self._plain if self._ended(self._helped) else self._helped
            block.append(now - self._last)
            if block is self._helped and self._ended(block) and self._plugin.engine is not None:
                self._plugin.engine.detach()
        self._last = perf_counter()

    def _ended(self, block: list[float]) -> bool:
        return len(block) >= self._most or (len(block) >= _LEAST and sum(block) > _PATIENCE)
