"""Trains one arm from one seed and measures what it ends with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hybrid_predict.torch.random_states import random_states, set_random_states
from hybrid_predict.audit.arm import AuditArm, MakeRun, short_steps
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.meter import EnoughError, Meter
from hybrid_predict.engine import HybridEngine
from hybrid_predict.overview import steps_until_skill
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import Observer, interruptible

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
    check: Callable[[Mapping[str, Any]], None] = lambda start: None,
) -> dict[str, Any]:
    """Train one arm from one seed.

    Args:
        make_run: Builds Trainer, model and data.
        config: The audit's configuration.
        name: The arm.
        seed: Set everywhere before ``make_run`` is called.
        folder: Where the Trainer may write.
        observer: Is told what happens.
        logger: The Trainer's logger, or None.
        check: Is given what is known of the run's entry before training, and may raise.

    Returns:
        The run's entry of the results file.

    Raises:
        ConfigError: If the run cannot be audited as it is set up.
        UnsupportedSetupError: If the callback cannot work with it, or it ended before its time.
        KeyboardInterrupt: If the user ended the run.
    """

    def started() -> None:
        total = meter.total_steps
        if name == FULL:
            short_steps(total, arm.lengths, config.speedup)
        check(_start(arm, meter))
        engine = arm.hybrid.engine if arm.hybrid else None
        planned = total if engine is None else total - engine.schedule.planned
        observer.run_started(name, seed, planned)

    meter = Meter(config.metric, seed, started, observer.stepped)
    arm = AuditArm(name, seed, config, folder, meter, logger)
    with preserved():
        _fit(arm, make_run, meter)
    return _entry(arm, meter)


def _start(arm: AuditArm, meter: Meter) -> dict[str, Any]:
    """What is known of the run's entry before training."""
    return {
        "arm": arm.name,
        "seed": arm.seed,
        "changes": dict(arm.changes),
        "total_steps": meter.total_steps,
        "lengths": arm.lengths,
        "shapes": meter.shapes,
        "weights": meter.weights,
    }


def _entry(arm: AuditArm, meter: Meter) -> dict[str, Any]:
    """The run's entry of the results file."""
    ledger, steps = arm.hybrid.ledger.summary() if arm.hybrid else None, meter.steps
    return {
        **_start(arm, meter),
        "full_steps": ledger["full_steps"] if ledger else steps,
        "predicted_steps": ledger["predicted_steps"] if ledger else 0,
        "undone_steps": ledger["undone_steps"] if ledger else 0,
        "steps": steps,
        "seconds": meter.seconds,
        "threads": torch.get_num_threads(),
        "rates": meter.rates,
        "curve": meter.curve,
        "metric_curve": meter.metric_curve,
        "metric": meter.value,
        "failure": meter.failure,
        "ledger": ledger,
    }


def try_steps(make_run: MakeRun, config: AuditConfig, steps: int, folder: Path) -> dict[str, Any]:
    """Train the full arm for a few full steps, to learn its length and the seconds of a step.

    Args:
        make_run: Builds Trainer, model and data.
        config: The audit's configuration.
        steps: Number of full steps; the first third is not timed.
        folder: Where the Trainer may write.

    Returns:
        ``total_steps`` and ``seconds_per_step``, validation left out, the Trainer's ``lengths``,
        and ``until_skill``, the steps until the hybrid arm can know its skill.

    Raises:
        UnsupportedSetupError: If the callback cannot work with the model or its optimizers.
    """
    until_skill = 0

    def started() -> None:
        nonlocal until_skill
        trainer, hybrid = arm.built, config.hybrid_config()
        chosen = replace(hybrid, total_steps=meter.total_steps)
        with HybridEngine(trainer.lightning_module, trainer.optimizers, chosen) as engine:
            until_skill = steps_until_skill(engine)

    meter = Meter(config.metric, on_start=started, limit=steps)
    arm = AuditArm(FULL, 0, config, folder, meter)
    with preserved(), suppress(EnoughError):
        _fit(arm, make_run, meter)
    first = len(meter.marks) // 3
    start = meter.marks[first - 1] if first else 0.0
    seconds = (meter.marks[-1] - start) / (len(meter.marks) - first)
    return {
        "total_steps": meter.total_steps,
        "seconds_per_step": seconds,
        "lengths": arm.lengths,
        "until_skill": until_skill,
    }


def _fit(arm: AuditArm, make_run: MakeRun, meter: Meter) -> None:
    """Train what ``make_run`` builds from the arm's seed."""
    import lightning.pytorch as pl

    pl.seed_everything(arm.seed, workers=True, verbose=False)
    trainer, model, data = arm.unpack(make_run(arm))
    with interruptible():
        trainer.fit(model, **data)
    if not meter.total_steps:  # Lightning does not start to train on nothing
        remedy = "Give training data of at least one batch, and leave limit_train_batches out."
        raise UnsupportedSetupError("Trainer", "batches to train on", "none", remedy)
