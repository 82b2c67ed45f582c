"""Stops a run on request, with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist

from hybrid_predict.engine import HybridEngine
from hybrid_predict.integrations.lightning_packages import TrainerCallback
from hybrid_predict.torch import ranks

if TYPE_CHECKING:
    import lightning.pytorch as pl

logger = ranks.rank_zero_logger(__name__)

_EVERY = 1.0
"""Seconds between two looks for a request, approximately."""

_RAREST = 1000
"""Largest number of full steps between two looks for a request."""


@final
class StopRequests(TrainerCallback):
    """Checks between full steps, when all weights are verified, whether the run has to stop.

    Rank 0 looks for a request about once a second. All ranks learn of it in the same full step,
    over a process group on the host, so that no rank waits for a device. This callback runs after
    all others.

    Args:
        engine: The run's engine.
        asked: Function that tells on rank 0 whether the run has to stop.
        saved: Function that is called with the path of the saved checkpoint.
        folder: Folder of the checkpoint on rank 0, None on other ranks.
    """

    def __init__(
        self,
        engine: HybridEngine,
        asked: Callable[[], bool],
        saved: Callable[[str], None],
        folder: Path | None,
    ) -> None:
        self._engine, self._asked, self._saved, self._folder = engine, asked, saved, folder
        self._group = dist.new_group(backend="gloo") if ranks.size() > 1 else None
        self._looked, self._time = engine.ledger.full_steps, monotonic()
        self._due: float = self._looked + 1

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop the run if this was requested; looks about once a second."""
        step = self._engine.ledger.full_steps
        if self._engine.in_step or step < self._due or self._engine.done:
            return
        asked, wait = self._agreed(step)
        self._due = step + wait
        # Before min_steps and min_epochs the Trainer does not stop.
        if not asked or not getattr(trainer.fit_loop, "_can_stop_early", True):
            return
        name = f"stopped-step={trainer.global_step}.ckpt"
        where = None if self._folder is None else str(self._folder / "checkpoints" / name)
        path = trainer.strategy.broadcast(where)
        assert path is not None
        self._due = float("inf")
        try:
            trainer.save_checkpoint(path)
        except OSError:
            if ranks.size() > 1:  # the other ranks have saved their shards, or wait
                raise
            text = "HybridPredict was asked to stop, but cannot save %s; the run continues."
            logger.warning(text, path, exc_info=True)
            return
        self._saved(path)
        trainer.should_stop = True

    def close(self) -> None:
        """Destroy the process group."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def _agreed(self, step: int) -> tuple[bool, int]:
        """Return whether to stop, and the number of full steps to the next look.

        Both are equal on all ranks.
        """
        now = monotonic()
        rate = (step - self._looked) / max(now - self._time, 1e-6)
        self._looked, self._time = step, now
        told = torch.tensor([int(self._asked()), min(_RAREST, max(1, round(rate * _EVERY)))])
        if self._group is not None:
            dist.broadcast(told, 0, group=self._group)
        return bool(told[0]), int(told[1])
