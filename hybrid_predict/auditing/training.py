"""Trains one arm from one seed and measures what it ends with."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hybrid_predict.auditing.arm import AuditArm, MakeRun
from hybrid_predict.auditing.config import AuditConfig
from hybrid_predict.auditing.meter import EnoughError, Meter, missing_metric, no_validation
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.evidence import FULL, HYBRID
from hybrid_predict.report.history import RunHistory
from hybrid_predict.runtime import Observer, interruptible
from hybrid_predict.verification import random_states, set_random_states

_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG")


@contextmanager
def preserved() -> Iterator[None]:
    """Put random states, torch's settings and Lightning's variables back after the block."""
    states, variables = random_states(), {name: os.environ.get(name) for name in _VARIABLES}
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic)
    precision, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    number, grad = torch.get_num_threads(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_num_threads(number)
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        cudnn.benchmark, cudnn.deterministic = flags
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        set_random_states(states)


def train_arm(
    make_run: MakeRun,
    config: AuditConfig,
    name: str,
    seed: int,
    folder: Path,
    observer: Observer,
    logger: Any = None,
) -> tuple[dict[str, Any], RunHistory | None]:
    """Train one arm from one seed.

    Args:
        make_run: Builds Trainer, model and data.
        config: The audit's configuration.
        name: The arm.
        seed: Set everywhere before ``make_run`` is called.
        folder: Where the Trainer may write.
        observer: Is told what happens.
        logger: The Trainer's logger, or None.

    Returns:
        The run's entry of the results file, and the hybrid run's history.

    Raises:
        ConfigError: If the run cannot be audited as it is set up.
        UnsupportedSetupError: If forecasts cannot work with it, or it ended before its time.
        KeyboardInterrupt: If the user ended the run.
    """

    def started(total_steps: int) -> None:
        planned = total_steps if name != HYBRID else math.ceil(total_steps / config.speedup)
        observer.run_started(name, seed, planned)

    meter = Meter(config.metric, started, observer.stepped)
    arm = AuditArm(name, seed, config, folder, meter, logger)
    with preserved():
        trainer, model, data = _seeded(arm, make_run)
        with interruptible():
            trainer.fit(model, **data)
            steps = int(trainer.global_step)
            _complete(arm, steps, meter.total_steps)
            value = _final(trainer, model, data, config.metric)
    return _entry(arm, meter, steps, value), arm.hybrid.history if arm.hybrid else None


def _complete(arm: AuditArm, steps: int, due: int) -> None:
    """Raise if a plain run ended before its time."""
    if steps < due and arm.hybrid is None:
        remedy = "Leave out what ends it early."
        raise UnsupportedSetupError("Trainer", f"a run of {due} full steps", steps, remedy)


def _entry(arm: AuditArm, meter: Meter, steps: int, value: float | None) -> dict[str, Any]:
    """The run's entry of the results file."""
    ledger = arm.hybrid.ledger.summary() if arm.hybrid else None
    return {
        "arm": arm.name,
        "seed": arm.seed,
        "full_steps": ledger["full_steps"] if ledger else steps,
        "equivalent_steps": steps,
        "cost": ledger["cost"] if ledger else float(steps),
        "total_steps": meter.total_steps,
        "lengths": arm.lengths,
        "seconds": meter.seconds,
        "threads": torch.get_num_threads(),
        "metric": value,
        "diverged": value is None,
        "ledger": ledger,
    }


def try_steps(make_run: MakeRun, config: AuditConfig, steps: int, folder: Path) -> dict[str, Any]:
    """Train the full arm a few full steps, to learn its length and the seconds of a step.

    Args:
        make_run: Builds Trainer, model and data.
        config: The audit's configuration.
        steps: Number of full steps; the first third is not timed.
        folder: Where the Trainer may write.

    Returns:
        ``total_steps`` and ``seconds_per_step``, validation left out, and the Trainer's
        ``lengths``.
    """
    meter = Meter(config.metric, limit=steps)
    arm = AuditArm(FULL, 0, config, folder, meter)
    with preserved():
        trainer, model, data = _seeded(arm, make_run)
        try:
            with interruptible():
                trainer.fit(model, **data)
        except EnoughError:
            pass
    first = len(meter.marks) // 3
    start = meter.marks[first - 1] if first else 0.0
    seconds = (meter.marks[-1] - start) / (len(meter.marks) - first)
    return {
        "total_steps": meter.total_steps,
        "seconds_per_step": seconds,
        "lengths": arm.lengths,
    }


def _seeded(arm: AuditArm, make_run: MakeRun) -> tuple[Any, Any, dict[str, Any]]:
    """What ``make_run`` builds from the arm's seed."""
    import lightning.pytorch as pl

    pl.seed_everything(arm.seed, workers=True, verbose=False)
    return arm.unpack(make_run(arm))


def _final(trainer: Any, model: Any, data: Mapping[str, Any], metric: str) -> float | None:
    """The metric of the final weights; None if the run diverged."""
    if not all(bool(p.isfinite().all()) for p in model.parameters() if p.is_floating_point()):
        return None
    source = {"dataloaders" if k == "val_dataloaders" else k: v for k, v in data.items()}
    source.pop("train_dataloaders", None)
    if not trainer.validate(model, verbose=False, **source):
        raise no_validation(metric)
    if metric not in trainer.callback_metrics:
        raise missing_metric(metric, trainer)
    value = float(trainer.callback_metrics[metric])
    return value if math.isfinite(value) else None
