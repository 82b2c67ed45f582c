"""One arm of one seed, as the user's code sees it: it builds the arm's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    ModelSummary,
    ProgressBar,
)
from lightning.pytorch.loggers.logger import DummyLogger

from hybrid_predict.audit.config import SHORTENED, AuditConfig, shortened
from hybrid_predict.audit.meter import Meter
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict, refuse
from hybrid_predict.runs.evidence import CORRECTED, HYBRID

MakeRun = Callable[["AuditArm"], Any]
"""Builds one arm's Trainer with ``arm.trainer(...)``; returns it with the model and the data."""

_KNOWN_LENGTH = "Leave it out: the number of steps of an arm has to be known."

_STOPPING = (
    "Not used in the audit: EarlyStopping. Arms can only be compared if each of them trains to the "
    "end of its schedule."
)


class AuditArm:
    """One arm of one seed; ``make_run`` is called with it.

    Args:
        name: ``full``, ``short``, ``corrected``, ``hybrid``, or the name of a control.
        seed: The seed of all random states.
        config: The audit's configuration.
        folder: Where the Trainer may write, and the callback its run log.
        meter: Measures the run, or None. Then the callbacks stay as the user gave them.
        logger: The Trainer's logger; None logs nothing.
        scale: How many times shorter than the full arm's its schedule is, if that does not follow
            from the configuration.

    Attributes:
        lengths: ``max_steps`` and ``max_epochs`` of the full arm, as far as given.
        left_out: What of the user's Trainer is not used, in sentences.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        config: AuditConfig,
        folder: Path,
        meter: Meter | None,
        logger: Any = None,
        scale: float | None = None,
    ) -> None:
        self.name = name
        self.seed = seed
        speedup = config.speedup if name in SHORTENED else 1.0
        self.scale = scale or (1.0 if isinstance(speedup, str) else speedup)
        self.hybrid: HybridPredict | None = None
        self.lengths: dict[str, int] = {}
        self.left_out: list[str] = []
        self._config = config
        self._folder = folder
        self._meter = meter
        self._logger = logger or DummyLogger()
        self._trainer: pl.Trainer | None = None

    @property
    def changes(self) -> Mapping[str, Any]:
        """What this arm changes according to the configuration; empty unless it is a control."""
        return self._config.controls.get(self.name, {})

    def scaled(self, number: int) -> int:
        """Return the steps or epochs of this arm from those of the full arm.

        Args:
            number: Steps or epochs of the full arm.

        Returns:
            ``number / speedup`` in the short and the corrected arm, rounded up so that they never
            get fewer steps than they should; else ``number``.

        Raises:
            ConfigError: If it is not a positive integer.
        """
        check_length("scaled", number)
        return shortened(number, self.scale)

    def trainer(self, **options: Any) -> pl.Trainer:
        """Build the Trainer of this arm; call it instead of ``lightning.Trainer``.

        Args:
            options: Arguments of ``lightning.Trainer``; ``max_steps`` or ``max_epochs`` as for
                plain training. The audit replaces ``logger``, ``default_root_dir``, progress bars
                and the model summary by its own.

        Returns:
            The Trainer, with the length and the callback of this arm.

        Raises:
            ConfigError: If such a run cannot be audited.
        """
        self.lengths = _lengths(options)
        callbacks = self._callbacks(options.get("callbacks"))
        if options.get("enable_checkpointing") is None:
            options["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in callbacks)
        replaced: dict[str, Any] = {
            **{name: self.scaled(length) for name, length in self.lengths.items()},
            "callbacks": callbacks,
            "logger": self._logger,
            "default_root_dir": str(self._folder),
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        self._trainer = pl.Trainer(**{**options, **replaced})
        return self._trainer

    def unpack(self, built: Any) -> tuple[pl.Trainer, pl.LightningModule, dict[str, Any]]:
        """Return Trainer, model and the data as arguments of ``fit`` from what was built.

        Raises:
            ConfigError: If it is not what ``make_run`` has to return.
            UnsupportedSetupError: If the callback does not support this model and Trainer.
        """
        if not isinstance(built, tuple) or len(built) != 3:
            expected = "a tuple of trainer, model and data"
            raise ConfigError("make_run", expected, type(built).__name__)
        trainer, model, data = built
        if self._trainer is None or trainer is not self._trainer:
            got = "another one" if self._trainer else "none, arm.trainer was not called"
            remedy = "Write arm.trainer(...) instead of lightning.Trainer(...), and return it."
            raise ConfigError("make_run", "the Trainer that arm.trainer(...) made", got, remedy)
        if not isinstance(model, pl.LightningModule):
            raise ConfigError("make_run", "a LightningModule", type(model).__name__)
        refuse(trainer)
        if (number := trainer.num_devices * trainer.num_nodes) > 1:
            remedy = "Set Trainer(devices=1) for the audit."
            raise UnsupportedSetupError("Trainer", "a single device", number, remedy)
        if not model.automatic_optimization:
            remedy = "Without it, the audit cannot shorten the arms alike."
            expected = "automatic optimization"
            raise UnsupportedSetupError("model", expected, "manual optimization", remedy)
        return trainer, model, _data(data)

    def settle_callbacks(self, trainer: pl.Trainer) -> None:
        """Treat callbacks that the model has added as those of the Trainer.

        Raises:
            ConfigError: If there is one that cannot be audited.
        """
        trainer.callbacks = self._allowed(trainer.callbacks)  # type: ignore[attr-defined]

    def _allowed(self, callbacks: list[Any]) -> list[Any]:
        """Leave out callbacks that end arms early, and refuse a plug-in of the user."""
        if any(isinstance(c, HybridPredict) and c is not self.hybrid for c in callbacks):
            remedy = "Leave it out: the audit adds it to the arms that have it."
            raise ConfigError("callbacks", "no HybridPredict", "one", remedy)
        allowed = [c for c in callbacks if not isinstance(c, EarlyStopping)]
        if len(allowed) < len(callbacks) and _STOPPING not in self.left_out:
            self.left_out.append(_STOPPING)
        return allowed

    def _callbacks(self, given: Any) -> list[Any]:
        """Return the user's callbacks, with those of the audit around them."""
        callbacks = given if isinstance(given, (list, tuple)) else [given]
        # The audit switches off what draws on the terminal; Lightning then refuses these callbacks.
        drawing = (ProgressBar, ModelSummary, type(None))
        callbacks = [c for c in callbacks if not isinstance(c, drawing)]
        if self._meter is None:
            return callbacks
        callbacks = self._allowed(callbacks)
        if self.name in (CORRECTED, HYBRID):
            chosen = self._config.hybrid_config()
            if self.name == CORRECTED:
                chosen = chosen.with_speedup(1.0)
            self.hybrid = HybridPredict(config=chosen, log_dir=str(self._folder))
            callbacks.insert(0, self.hybrid)
        return [*callbacks, self._meter]


def _lengths(options: Mapping[str, Any]) -> dict[str, int]:
    """Return what ends the full arm: ``max_steps``, ``max_epochs``, or both."""
    for name in ("fast_dev_run", "max_time"):
        if options.get(name):
            raise ConfigError(name, "nothing", options[name], _KNOWN_LENGTH)
    given = {name: options.get(name) for name in ("max_steps", "max_epochs")}
    lengths = {name: value for name, value in given.items() if value not in (None, -1)}
    for name, value in lengths.items():
        check_length(name, value)
    if not lengths:
        remedy = "Set one of them in the file's trainer section, or in arm.trainer(...)."
        raise ConfigError("Trainer", "max_steps or max_epochs", "neither", remedy)
    return lengths


def check_length(name: str, value: Any, remedy: str = "") -> None:
    """Check that a number of steps or epochs is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(name, "a positive integer", value, remedy)


def _data(data: Any) -> dict[str, Any]:
    """Return the data as arguments of ``Trainer.fit``."""
    if data is None or isinstance(data, pl.LightningDataModule):
        return {"datamodule": data}
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return {"train_dataloaders": data[0], "val_dataloaders": data[1]}
    expected = "a LightningDataModule, a pair of training and validation loader, or None, as data"
    remedy = "None is for a model that has its own loaders."
    raise ConfigError("make_run", expected, type(data).__name__, remedy)
