"""Trains one arm from one seed, and measures the final weights."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, shortened
from hybrid_predict.audit.meter import Meter, TrialEnd
from hybrid_predict.audit.store import Cell, FinishedRun
from hybrid_predict.config import Speedup
from hybrid_predict.errors import ConfigError, UnsupportedSetupError, raise_interrupt
from hybrid_predict.runs.random_states import random_states, set_random_states
from hybrid_predict.runs.runtime import Observer, interruptible

ROUNDING = 1.1
"""Largest factor by which rounding up may lengthen the short arms."""

LEAST_LENGTH = 40
"""Fewest steps or epochs of a run that ``"auto"`` shortens: then rounding up adds few."""

DATA: Mapping[type, str] = {pl.LightningDataModule: "data"}
CREATED: Mapping[type, str] = {**DATA, pl.LightningModule: "model", pl.Callback: "callbacks"}
"""Classes of objects of a file, with their keys."""

_NO_DATA = (
    "Name a LightningDataModule, in a file as data.class_path, or return it after the model; or "
    "define train_dataloader() in the model."
)

COUNTED = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Steps that a ledger counts and the run's entry has too; 0 without the plug-in."""

_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG")

_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)
"""Functions that get and set what training may change."""


@contextmanager
def preserved() -> Iterator[None]:
    """Restore random states, torch's settings and Lightning's variables after the block."""
    states = random_states()
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    settings = [(set_to, get()) for get, set_to in _SETTINGS]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic)
    try:
        yield
    finally:
        for set_to, value in settings:
            set_to(value)
        cudnn.benchmark, cudnn.deterministic = flags
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        for name, text in variables.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text
        set_random_states(states)


def short_steps(total: int, lengths: Mapping[str, int], speedup: Speedup) -> int:
    """Return the full steps of a short arm, at least ``total / speedup``; with ``"auto"`` the most.

    ``total`` steps and ``lengths`` (``max_steps`` and ``max_epochs``, if given) are the full arm's.

    Raises:
        ConfigError: If rounding up adds, or with ``"auto"`` could add, so many steps that the arm
            is no fair control.
    """
    # The shorter of steps and epochs ends every arm.
    name = "max_steps" if lengths.get("max_steps") == total else "max_epochs"
    length = lengths[name]
    if isinstance(speedup, str):
        if length < LEAST_LENGTH:
            expected = f'at least {LEAST_LENGTH} with speedup "{AUTO}"'
            remedy = "Set max_steps instead, train for longer, or give the speedup as a number."
            raise ConfigError(name, expected, length, remedy)
        return total
    rounded = shortened(length, speedup)
    if rounded > ROUNDING * length / speedup:
        got = f"{length} shortened to {rounded}, not {length / speedup:.3g}"
        remedy = "Set max_steps instead, to more steps, or train for more epochs."
        expected = f"a length that can be divided by the speedup {speedup:g}"
        raise ConfigError(name, expected, got, remedy)
    return math.ceil(total * rounded / length - 1e-9)


def train_arm(
    make_run: MakeRun,
    config: AuditConfig,
    cell: Cell,
    folder: Path,
    observer: Observer,
    logger: Any = None,
    check: Callable[[FinishedRun], None] = lambda start: None,
    scale: float | None = None,
) -> FinishedRun:
    """Train one cell, and return the run's entry of the results file.

    ``check`` gets the part of the entry that is known before training, and may raise. ``scale`` is
    as for :class:`AuditArm`.
    """
    meter = Meter(config.metric, cell.seed, on_step=observer.stepped)
    arm = AuditArm(cell.arm, cell.seed, config, folder, meter, logger, scale)

    def entry() -> dict[str, Any]:
        return {
            **cell._asdict(),
            "changes": dict(arm.changes),
            "lengths": arm.lengths,
            "scale": arm.scale,
            "left_out": arm.left_out,
            **meter.entry,
        }

    def started(trainer: Any) -> None:
        arm.settle_callbacks(trainer)
        check(entry())
        observer.run_started(cell.arm, cell.seed, meter.total_steps)

    meter.on_start = started
    fit_arm(arm, make_run, meter)
    ledger = arm.hybrid.ledger.summary() if arm.hybrid else None
    counts = ledger or {"full_steps": meter.entry["steps"]}
    return {
        **entry(),
        **{name: counts.get(name, 0) for name in COUNTED},
        "seconds": meter.seconds,
        "threads": torch.get_num_threads(),
        "ledger": ledger,
    }


def fit(trainer: pl.Trainer, model: pl.LightningModule, data: Mapping[str, Any]) -> None:
    """Train a model; ``data`` are arguments of ``Trainer.fit``.

    Raises:
        ConfigError: If there are no training data, or their LightningDataModule fails.
    """
    given = (data.get(name) for name in ("datamodule", "train_dataloaders"))
    source = next((each for each in given if each is not None), model)
    parts = (pl.LightningModule, pl.LightningDataModule)
    if isinstance(source, parts) and not is_overridden("train_dataloader", source):
        raise ConfigError("data", "training data", "none", _NO_DATA)
    try:
        with interruptible():
            trainer.fit(model, **data)
    except MisconfigurationException as error:
        remedy = f"Lightning says: {error}"
        raise ConfigError("Trainer", "what Lightning can train", "another run", remedy) from error
    except Exception as error:
        raise_named(error)
        raise


def raise_named(error: BaseException, keys: Mapping[type, str] = DATA) -> None:
    """Raise an error of an object of some classes as one that names the object's key in a file.

    Raises:
        ConfigError: If it is an error of such an object.
    """
    while error.__cause__ is not None:  # Lightning's parser hides what an object raises
        error = error.__cause__
    raise_interrupt(error)
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        code = frame.f_code
        for cls, key in keys.items():
            if isinstance(owner, cls):
                method = f"{type(owner).__name__}.{code.co_name}() to succeed"
                got = f"{type(error).__name__}: {error}"
                place = f"{Path(code.co_filename).name}, line {line}"
                remedy = f"See {place}; in a file its arguments are {key}.init_args."
                raise ConfigError(key, method, got, remedy) from error


def fit_arm(arm: AuditArm, make_run: MakeRun, meter: Meter) -> None:
    """Train what ``make_run`` builds, from the arm's seed; restore all settings afterwards."""
    with preserved(), suppress(TrialEnd):
        pl.seed_everything(arm.seed, workers=True, verbose=False)
        trainer, model, data = arm.unpack(make_run(arm))
        fit(trainer, model, data)
    if not meter.total_steps:  # Lightning does not start to train without batches
        remedy = "Give training data of at least one batch, and leave limit_train_batches out."
        raise UnsupportedSetupError("Trainer", "batches to train on", "none", remedy)
