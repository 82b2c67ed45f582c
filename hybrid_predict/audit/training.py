"""Trains one arm from one seed, and restores what training changes."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, shortened
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.store import Cell, FinishedRun
from hybrid_predict.config import Speedup
from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors.random_states import random_states, set_random_states

ROUNDING = 1.1
"""Largest factor by which rounding up may lengthen the short arms."""

LEAST_LENGTH = 40
"""Fewest steps or epochs of a run that ``"auto"`` shortens: then rounding up adds few."""

COUNTED = ("full_steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Steps that a ledger counts and the run's entry has too; 0 without the plug-in."""

_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG")

_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (random_states, set_random_states),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)
"""Functions that get and set what training may change."""


class Observer:
    """Methods that are called while arms are trained; these do nothing."""

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        """A run of ``steps``, full or predicted, begins."""

    def stepped(self, steps: int, loss: float) -> None:
        """A run has done ``steps``, full or predicted; called after some of the full steps."""

    def run_found(self, run: Mapping[str, Any]) -> None:
        """A run was finished before; ``run`` is its entry in the results file."""

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """A run is finished; ``run`` is its entry in the results file."""

    def candidate_finished(self, arm: str, speedup: Speedup, finding: str) -> None:
        """A search has tested an arm at a speedup, with this finding in a few words."""


@contextmanager
def preserved() -> Iterator[None]:
    """Restore random states, torch's settings and Lightning's variables after the block."""
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    settings = [(set_to, get()) for get, set_to in _SETTINGS]
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic)
    try:
        yield
    finally:
        for set_to, value in settings:
            set_to(value)
        cudnn.benchmark, cudnn.deterministic = flags
        for name, text in variables.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text


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
    remedy = "Set max_steps instead, to more steps, or train for more epochs."
    if isinstance(speedup, str):
        if length < LEAST_LENGTH:
            expected = f'at least {LEAST_LENGTH} with speedup "{AUTO}"'
            raise ConfigError(name, expected, length, remedy)
        return total
    rounded = shortened(length, speedup)
    if rounded > ROUNDING * length / speedup:
        got = f"{length} shortened to {rounded}, not {length / speedup:.3g}"
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
    meter = Meter(config.metric, cell.seed, observer.stepped)
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
    fit_arm(arm, make_run)
    meter.check_started()
    ledger = arm.hybrid.ledger.summary() if arm.hybrid else None
    counts = ledger or {"full_steps": meter.entry["steps"]}
    return {
        **entry(),
        **{name: counts.get(name, 0) for name in COUNTED},
        "seconds": meter.seconds,
        "threads": torch.get_num_threads(),
        "ledger": ledger,
    }


def fit_arm(arm: AuditArm, make_run: MakeRun) -> None:
    """Train what ``make_run`` builds, from the arm's seed; restore all settings afterwards."""
    with preserved():
        pl.seed_everything(arm.seed, workers=True, verbose=False)
        fit(*arm.unpack(make_run(arm)))


def fit(trainer: pl.Trainer, model: pl.LightningModule, data: Mapping[str, Any]) -> None:
    """Train a model; ``data`` are arguments of ``Trainer.fit``.

    Raises:
        ConfigError: If Lightning refuses the run, for example without training data.
    """
    try:
        with interruptible():
            trainer.fit(model, **data)
    except MisconfigurationException as error:
        remedy = f"Lightning says: {error}"
        raise ConfigError("Trainer", "what Lightning can train", "another run", remedy) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C where Lightning exits and ignores further Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):  # the model's own
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None
