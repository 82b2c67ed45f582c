"""One arm of one seed, as the user's code sees it: it builds the arm's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
from lightning.pytorch.loggers.logger import DummyLogger

from hybrid_predict.audit.config import AuditConfig, shortened
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict, refuse
from hybrid_predict.runs.evidence import CORRECTED, HYBRID

MakeRun = Callable[["AuditArm"], Any]
"""Builds one arm's Trainer with ``arm.trainer(...)``; returns it with the model and the data."""


class AuditArm:
    """One arm of one seed; ``make_run`` is called with it.

    The run has a length in steps or epochs, one device and automatic optimization. Progress bars
    are left out; ``EarlyStopping`` and ``HybridPredict`` among its callbacks are refused. The
    Trainer may write to ``folder``, and its schedule is ``scale`` times shorter than the full
    arm's.

    Attributes:
        name: ``full``, ``short``, ``corrected``, ``hybrid``, or the name of a control.
        seed: The seed of all random states.
        changes: What this arm changes according to the configuration; empty unless it is a control.
        lengths: ``max_steps`` and ``max_epochs`` of the full arm, as far as given.
        hybrid: The callback of this arm, or None.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        folder: Path,
        config: AuditConfig,
        scale: float = 1.0,
        logger: Any = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.changes: Mapping[str, Any] = config.controls.get(name, {})
        self.lengths: dict[str, int] = {}
        self.hybrid: HybridPredict | None = None
        if name in (CORRECTED, HYBRID):
            speedup = 1.0 if name == CORRECTED else config.speedup
            chosen = config.hybrid_config().with_speedup(speedup)
            self.hybrid = HybridPredict(config=chosen, log_dir=str(folder))
        # With auto, a saving of a tenth has to show in the short arms.
        self._speedup = 1.1 if isinstance(config.speedup, str) else config.speedup
        self._scale = scale
        self._folder = folder
        self._logger = logger or DummyLogger()
        self._trainer: pl.Trainer | None = None

    def scaled(self, number: int) -> int:
        """Return the steps or epochs of this arm from those of the full arm.

        They are ``number / speedup``, rounded up, in the short and the corrected arm; else
        ``number``, which has to be a positive integer (ConfigError).
        """
        check_length("scaled", number)
        return shortened(number, self._scale)

    def trainer(self, **options: Any) -> pl.Trainer:
        """Build the Trainer of this arm; call it instead of ``lightning.Trainer``.

        It has the length and the callback of this arm. The options are those of plain training,
        with ``max_steps`` or ``max_epochs`` (else ConfigError). The audit replaces ``logger``,
        ``default_root_dir``, progress bars and the model summary by its own, and saves no
        checkpoint unless asked to.
        """
        for name in ("max_steps", "max_epochs"):
            length = options.get(name)
            if length not in (None, -1):
                check_length(name, length)
                self.lengths[name] = length
        if not self.lengths or options.get("fast_dev_run"):
            remedy = "Set one of them in the file's trainer section, or in arm.trainer(...)."
            raise ConfigError("Trainer", "max_steps or max_epochs", "neither", remedy)
        callbacks = options.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        # The audit switches off what draws on the terminal; Lightning then refuses these callbacks.
        kept = [c for c in callbacks if not isinstance(c, (ProgressBar, ModelSummary))]
        if options.get("enable_checkpointing") is None:
            options["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in kept)
        options |= {
            **{name: self.scaled(length) for name, length in self.lengths.items()},
            "callbacks": kept if self.hybrid is None else [self.hybrid, *kept],
            "logger": self._logger,
            "default_root_dir": str(self._folder),
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        self._trainer = pl.Trainer(**options)
        return self._trainer

    def check_shortened(self) -> None:
        """Check that the short arms of the audit are shorter than the full arm."""
        if all(shortened(length, self._speedup) == length for length in self.lengths.values()):
            remedy = "Set max_steps instead, or train for more epochs."
            expected = f"a length that is shorter at speedup {self._speedup:g}"
            raise ConfigError("Trainer", expected, self.lengths, remedy)

    def unpack(self, built: Any) -> tuple[pl.Trainer, pl.LightningModule, list[Any]]:
        """Return Trainer, model and loaders from what was built."""
        parts: Any = built if isinstance(built, tuple) and len(built) == 3 else [None] * 3
        trainer, model, data = parts
        pair = isinstance(data, (tuple, list)) and len(data) == 2
        known = data is None or isinstance(data, pl.LightningDataModule) or pair
        if self._trainer is None or trainer is not self._trainer or not known:
            expected = (
                "the Trainer that arm.trainer(...) made in place of lightning.Trainer(...), the "
                "model and the data: a LightningDataModule, a pair of training and validation "
                "loader, or None if the model has its own"
            )
            got = list(map(type, built)) if isinstance(built, tuple) else type(built)
            raise ConfigError("make_run", expected, got)
        refuse(trainer)
        if (number := trainer.num_devices * trainer.num_nodes) > 1:
            remedy = "Set Trainer(devices=1) for the audit."
            raise UnsupportedSetupError("Trainer", "a single device", number, remedy)
        if not model.automatic_optimization:
            remedy = "Without it, the audit cannot shorten the arms alike."
            expected = "automatic optimization"
            raise UnsupportedSetupError("model", expected, "manual optimization", remedy)
        # Lightning accepts a LightningDataModule in the place of the first loader too.
        return trainer, model, list(data) if pair else [data]


def check_length(name: str, value: Any) -> None:
    """Check that a number of steps or epochs is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(name, "a positive integer", value)
