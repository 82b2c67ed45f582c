"""One arm of one seed, as the user's code sees it: it builds the arm's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelSummary,
    ProgressBar,
    Timer,
)
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from hybrid_predict.audit.config import SHORTENED, AuditConfig, shortened
from hybrid_predict.audit.meter import Meter
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.integrations.lightning import HybridPredict
from hybrid_predict.integrations.lightning_start import refuse
from hybrid_predict.runs.evidence import CORRECTED, HYBRID

MakeRun = Callable[["AuditArm"], Any]
"""Builds one arm's Trainer with ``arm.trainer(...)``; returns it with the model and the data."""

_KNOWN_LENGTH = "The number of steps of an arm has to be known."

_REFUSED = {
    Timer: f"Leave it out, and max_time too. {_KNOWN_LENGTH}",
    GradientAccumulationScheduler: "Set accumulate_grad_batches in arm.trainer(...) instead. "
    f"{_KNOWN_LENGTH}",
    HybridPredict: "Leave it out: the audit adds it to the arms that have it.",
}

_STOPPING = (
    "Not used in the audit: EarlyStopping. Arms can only be compared if each of them trains to the "
    "end of its schedule."
)

_RETURN = "Return trainer, model, data."


class AuditArm:
    """One arm of one seed; ``make_run`` is called with it.

    Args:
        name: ``full``, ``short``, ``corrected``, ``hybrid``, or the name of a control.
        seed: The seed of all random states.
        config: The audit's configuration.
        folder: Where the Trainer may write, and the callback its run log.
        meter: Measures the run; None leaves the callbacks as the user gave them.
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
            ConfigError: If such a run cannot be audited, or Lightning refuses an option.
        """
        self.lengths = _lengths(options)
        self._note_loggers(options.get("logger"))
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
        try:
            self._trainer = pl.Trainer(**{**options, **replaced})
        except (MisconfigurationException, TypeError, ValueError) as error:
            remedy = f"Lightning says: {error}"
            raise ConfigError("Trainer", "options it accepts", sorted(options), remedy) from error
        return self._trainer

    def unpack(self, built: Any) -> tuple[pl.Trainer, pl.LightningModule, dict[str, Any]]:
        """Return Trainer, model and the data as arguments of ``fit`` from what was built.

        Raises:
            ConfigError: If it is not what ``make_run`` has to return.
            UnsupportedSetupError: If the callback does not support this model and Trainer.
        """
        if not isinstance(built, tuple) or len(built) != 3:
            raise ConfigError("make_run", "a tuple of three", type(built).__name__, _RETURN)
        trainer, model, data = built
        if self._trainer is None or trainer is not self._trainer:
            raise ConfigError(
                "make_run",
                "the Trainer that arm.trainer(...) made",
                "another one" if self._trainer else "none, arm.trainer was not called",
                "Write arm.trainer(...) instead of lightning.Trainer(...), and return its result.",
            )
        if not isinstance(model, pl.LightningModule):
            raise ConfigError("make_run", "a LightningModule", type(model).__name__, _RETURN)
        refuse(trainer)
        if (number := trainer.num_devices * trainer.num_nodes) > 1:
            remedy = "Set Trainer(devices=1) for the audit."
            raise UnsupportedSetupError("Trainer", "a single device", f"{number}", remedy)
        if not model.automatic_optimization:
            remedy = "Without it, the audit cannot shorten the arms alike."
            raise UnsupportedSetupError(
                "model", "automatic optimization", "manual optimization", remedy
            )
        return trainer, model, _data(data)

    def settle_callbacks(self, trainer: pl.Trainer) -> None:
        """Treat callbacks that the model has added as those of the Trainer.

        Raises:
            ConfigError: If there is one that cannot be audited.
        """
        trainer.callbacks = self._allowed(trainer.callbacks)  # type: ignore[attr-defined]

    def _allowed(self, callbacks: list[Any]) -> list[Any]:
        """Leave out callbacks that end arms early, and refuse those that cannot be left out."""
        for callback in callbacks:
            for kind, remedy in _REFUSED.items():
                if isinstance(callback, kind) and callback is not self.hybrid:
                    expected = f"callbacks other than {kind.__name__}"
                    raise ConfigError("callbacks", expected, type(callback).__name__, remedy)
        allowed = [c for c in callbacks if not isinstance(c, EarlyStopping)]
        if len(allowed) < len(callbacks) and _STOPPING not in self.left_out:
            self.left_out.append(_STOPPING)
        return allowed

    def _note_loggers(self, given: Any) -> None:
        """Note which loggers the audit's own takes the place of."""
        loggers = given if isinstance(given, (list, tuple)) else [given]
        if names := [_class_name(x) for x in loggers if x is not None and not isinstance(x, bool)]:
            text = f"Not used in the audit, which has a logger of its own: {', '.join(names)}."
            self.left_out.append(text)

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
            raise ConfigError(name, "nothing", options[name], f"Leave it out. {_KNOWN_LENGTH}")
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


def _class_name(logger: Any) -> str:
    """Return the name of the class of a logger, or of its description in a file."""
    if isinstance(logger, Logger):
        return type(logger).__name__
    return str(getattr(logger, "class_path", logger)).rpartition(".")[2]


def _data(data: Any) -> dict[str, Any]:
    """Return the data as arguments of ``Trainer.fit``."""
    if data is None or isinstance(data, pl.LightningDataModule):
        return {"datamodule": data}
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return {"train_dataloaders": data[0], "val_dataloaders": data[1]}
    raise ConfigError(
        "make_run",
        "a LightningDataModule, a pair of training and validation loader, or None, as data",
        type(data).__name__,
        "None is for a model that has its own loaders.",
    )
