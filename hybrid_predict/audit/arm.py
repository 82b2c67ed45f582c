"""One arm of one seed, as the user's own code sees it: it builds the arm's Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.accounts.clock import Clock
from hybrid_predict.audit.config import SHORTENED, AuditConfig
from hybrid_predict.audit.meter import Meter
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.evidence import CORRECTED, HYBRID

if TYPE_CHECKING:
    import lightning.pytorch as pl

    from hybrid_predict.integrations.lightning import HybridPredict

MakeRun = Callable[["AuditArm"], Any]
"""Builds one arm's Trainer by ``arm.trainer(...)`` and returns it with the model and the data."""

_LENGTHS = ("max_steps", "max_epochs")

ROUNDING = 1.1
"""The factor by which rounding up may lengthen the short arms at most."""


class AuditArm:
    """One arm of one seed; ``make_run`` is called with it.

    Args:
        name: ``full``, ``short``, ``corrected``, ``hybrid``, or that of a control.
        seed: The seed that all random states were set to.
        config: The audit's configuration.
        folder: Where the Trainer may write, and the callback its run log.
        meter: Measures the run.
        logger: The Trainer's logger; None logs nothing.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        config: AuditConfig,
        folder: Path,
        meter: Meter,
        logger: Any = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.speedup = config.speedup
        self.hybrid: HybridPredict | None = None
        self.lengths: dict[str, int] = {}
        self._config = config
        self._folder = folder
        self._meter = meter
        self._logger = logger
        self._trainer: pl.Trainer | None = None

    @property
    def changes(self) -> Mapping[str, Any]:
        """What the configuration says that this arm changes; empty unless it is a control."""
        return self._config.controls.get(self.name, {})

    @property
    def built(self) -> pl.Trainer:
        """The Trainer that :meth:`trainer` made."""
        assert self._trainer is not None
        return self._trainer

    def scaled(self, number: int) -> int:
        """So many steps or epochs of the plain schedule, in this arm's own.

        Args:
            number: Steps or epochs of the full arm.

        Returns:
            ``number / speedup`` in the short and the corrected arm, rounded up so that they never
            get fewer steps than they should; else ``number``.

        Raises:
            ConfigError: If it is no positive integer.
        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError("scaled", "a positive integer", number)
        return shortened(number, self.speedup) if self.name in SHORTENED else number

    def trainer(self, **options: Any) -> pl.Trainer:
        """The Trainer of this arm, to be used instead of ``lightning.Trainer``.

        Args:
            options: Arguments of ``lightning.Trainer``; ``max_steps`` or ``max_epochs`` as for
                plain training. ``logger``, ``default_root_dir``, progress bars and the model
                summary are replaced by the audit's own.

        Returns:
            The Trainer, shortened and with the callback as its arm has it.

        Raises:
            ConfigError: If an audit of such a run means nothing, or Lightning refuses an option.
        """
        import lightning.pytorch as pl
        from lightning.fabric.utilities.exceptions import MisconfigurationException
        from lightning.pytorch.callbacks import Checkpoint
        from lightning.pytorch.loggers.logger import DummyLogger

        self.lengths = self._scaled_lengths(options)
        callbacks = self._callbacks(options.get("callbacks"))
        if options.get("enable_checkpointing") is None:
            options["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in callbacks)
        own: dict[str, Any] = {
            **self.lengths,
            "callbacks": callbacks,
            "logger": self._logger or DummyLogger(),
            "default_root_dir": str(self._folder),
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        try:
            trainer = pl.Trainer(**{**options, **own})
        except (MisconfigurationException, TypeError, ValueError) as error:
            remedy = f"Lightning says: {error}"
            raise ConfigError("Trainer", "options it accepts", sorted(options), remedy) from error
        self._trainer = trainer
        return trainer

    def _callbacks(self, given: Any) -> list[Any]:
        """The user's callbacks with those of the audit around them."""
        from lightning.pytorch.callbacks import LambdaCallback, ModelSummary, ProgressBar

        from hybrid_predict.integrations.lightning import HybridPredict

        callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
        refuse_callbacks(callbacks)
        left_out = (ProgressBar, ModelSummary, type(None))
        kept = [c for c in callbacks if not isinstance(c, left_out)]
        if self.name in (CORRECTED, HYBRID):
            own = self._config
            config = own.hybrid_config() if self.name == HYBRID else own.corrected_config()
            self.hybrid = HybridPredict(config=config, log_dir=str(self._folder))
            kept.insert(0, self.hybrid)
        return [*kept, LambdaCallback(on_fit_start=self._look_again), self._meter.callback()]

    def unpack(self, made: Any) -> tuple[pl.Trainer, pl.LightningModule, dict[str, Any]]:
        """Check what ``make_run`` returned.

        Args:
            made: What it returned.

        Returns:
            Trainer, model, and the data as arguments of ``fit``.

        Raises:
            ConfigError: If it is not what ``make_run`` has to return.
            UnsupportedSetupError: If the callback cannot work with this model and Trainer.
        """
        import lightning.pytorch as pl

        from hybrid_predict.integrations.lightning_start import refuse

        if not isinstance(made, tuple) or len(made) != 3:
            remedy = "Return trainer, model, data."
            raise ConfigError("make_run", "a tuple of three", type(made).__name__, remedy)
        given, model, data = made
        trainer = self._trainer
        if trainer is None or given is not trainer:
            raise ConfigError(
                "make_run",
                "the Trainer that arm.trainer(...) made",
                "another one" if trainer else "none, arm.trainer was not called",
                "Write arm.trainer(...) instead of lightning.Trainer(...), and return its result.",
            )
        if not isinstance(model, pl.LightningModule):
            remedy = "Return trainer, model, data."
            raise ConfigError("make_run", "a LightningModule", type(model).__name__, remedy)
        refuse(trainer, model)
        if (number := trainer.num_devices * trainer.num_nodes) > 1:
            remedy = "Set Trainer(devices=1) for the audit."
            raise UnsupportedSetupError("Trainer", "a single device", f"{number}", remedy)
        if not model.automatic_optimization:
            remedy = "The arms of an audit cannot be shortened alike without it."
            raise UnsupportedSetupError(
                "model", "automatic optimization", "manual optimization", remedy
            )
        return trainer, model, _data(data)

    def _look_again(self, trainer: Any, module: Any) -> None:
        """Look at the callbacks when the model has added its own."""
        refuse_callbacks([c for c in trainer.callbacks if c is not self.hybrid])

    def _scaled_lengths(self, options: Mapping[str, Any]) -> dict[str, int]:
        for name in ("fast_dev_run", "max_time"):
            if options.get(name):
                remedy = f"Leave {name} out: how many steps an arm takes has to be known."
                raise ConfigError(name, "nothing", options[name], remedy)
        given = {n: options[n] for n in _LENGTHS if options.get(n) not in (None, -1)}
        if not given:
            remedy = "Set one of them in the file's trainer section, or in arm.trainer(...)."
            raise ConfigError("Trainer", "max_steps or max_epochs", "neither", remedy)
        for name, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(name, "a positive integer", value)
        return {name: self.scaled(value) for name, value in given.items()}


def shortened(number: int, speedup: float) -> int:
    """Steps or epochs of a short arm for so many of the full arm, rounded up."""
    # The speedup is rarely a binary fraction: 33 / 1.1 shall be 30.
    return math.ceil(number / speedup - 1e-9)


def short_steps(total: int, lengths: Mapping[str, int], speedup: float) -> int:
    """Full steps of a short arm.

    Args:
        total: Full steps of the full arm.
        lengths: Its ``max_steps`` and ``max_epochs``, as far as given.
        speedup: Steps per full step of the hybrid arm.

    Returns:
        Their number, at least ``total / speedup``.

    Raises:
        ConfigError: If rounding up adds so many that the arm is no control any more.
    """
    # Whichever of steps and epochs ends the full arm ends the short ones too.
    name = "max_steps" if lengths.get("max_steps") == total else "max_epochs"
    length = lengths[name]
    rounded = shortened(length, speedup)
    if rounded > ROUNDING * length / speedup:
        what = f"{length} shortened to {rounded}, not {length / speedup:.3g}"
        remedy = "Set max_steps instead, to more steps, or train for more epochs."
        expected = f"a length that can be divided by the speedup {speedup:g}"
        raise ConfigError(name, expected, what, remedy)
    return math.ceil(total * rounded / length - 1e-9)


def planned_steps(
    name: str, total: int, lengths: Mapping[str, int], config: AuditConfig, until_skill: int
) -> int:
    """Full steps of an arm, those of the hybrid one if all its predicted steps are made and stand.

    Args:
        name: The arm.
        total: Full steps of the full arm.
        lengths: Its ``max_steps`` and ``max_epochs``, as far as given.
        config: The audit's configuration.
        until_skill: Steps until skill can be known, during which nothing is predicted.

    Raises:
        ConfigError: As :func:`short_steps` does.
    """
    if name in SHORTENED:
        return short_steps(total, lengths, config.speedup)
    if name != HYBRID:
        return total
    return total - Clock(replace(config.hybrid_config(), total_steps=total), until_skill).planned


def refuse_callbacks(callbacks: list[Any]) -> None:
    """Raise if one of the user's callbacks ends runs early or is the audit's own.

    Raises:
        ConfigError: If there is such a callback.
    """
    from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, Timer

    from hybrid_predict.integrations.lightning import HybridPredict

    remedies: dict[type, str] = {
        EarlyStopping: "Leave it out: arms that end by themselves cannot be compared.",
        Timer: "Leave it out, and max_time too: how many steps an arm takes has to be known.",
        GradientAccumulationScheduler: "Set accumulate_grad_batches in arm.trainer(...) instead: "
        "how many steps an arm takes has to be known.",
        HybridPredict: "Leave it out: the audit adds it where it belongs.",
    }
    for callback in callbacks:
        for kind, remedy in remedies.items():
            if isinstance(callback, kind):
                raise ConfigError("callbacks", f"no {kind.__name__}", "one", remedy)


def _data(data: Any) -> dict[str, Any]:
    """The data as arguments of ``Trainer.fit``."""
    import lightning.pytorch as pl

    if data is None or isinstance(data, pl.LightningDataModule):
        return {"datamodule": data}
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return {"train_dataloaders": data[0], "val_dataloaders": data[1]}
    raise ConfigError(
        "make_run",
        "a LightningDataModule, a pair of training and validation loader, or None, as data",
        type(data).__name__,
        "None stands for a model that has its own loaders.",
    )
