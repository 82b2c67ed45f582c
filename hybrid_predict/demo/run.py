"""The demo: an audit of a small GPT on the standard library's source text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.run import AuditResult, audit, conditions
from hybrid_predict.audit.store import RunStore
from hybrid_predict.demo.text import StdlibText, load_stdlib_text
from hybrid_predict.demo.training import (
    METRIC,
    DemoRecipe,
    TrainingBatches,
    build_data,
    build_module,
)
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.runtime import Observer, threads

EXPERIMENT = "hybrid-predict demo"

CONTROLS = {"full, hidden x2": {"hidden_factor": 2.0}}
"""The full arm with the hidden matrices at twice the learning rate."""


def demo_config(
    recipe: DemoRecipe, *, speedup: float = 1.5, seeds: int = 3, controls: bool = False,
    mlflow: bool = True,
) -> AuditConfig:  # fmt: skip
    """Return the configuration of the audit.

    Args:
        recipe: Model, data and optimizer.
        speedup: Steps per full step of the hybrid arm, above 1.
        seeds: Number of paired seeds, at least 1.
        controls: Whether to add the arm of :data:`CONTROLS`.
        mlflow: Whether to log the runs to MLflow.

    Raises:
        ConfigError: If a value is out of range.
    """
    most = recipe.steps / 10
    if not isinstance(speedup, (int, float)) or not 1 < speedup <= most:
        raise ConfigError("speedup", f"a number above 1 and at most {most:g}", speedup)
    return AuditConfig(
        metric=METRIC,
        speedup=speedup,
        seeds=seeds,
        controls=CONTROLS if controls else {},
        experiment=EXPERIMENT,
        mlflow=mlflow,
    )


def run_demo(
    recipe: DemoRecipe,
    config: AuditConfig,
    folder: Path,
    observer: Observer | None = None,
    *,
    number: int | None = None,
    overwrite: bool = False,
) -> AuditResult:
    """Train the runs that the folder does not hold yet; see :func:`hybrid_predict.audit.audit`.

    Args:
        recipe: Model, data and optimizer.
        config: Configuration from :func:`demo_config`.
        folder: Folder for all files that the demo writes.
        observer: Object that is called as runs begin, advance and end.
        number: Threads of torch; None for as many as the runs in the folder had, or, in an empty
            folder, for :func:`fastest_threads`.
        overwrite: Whether to train again the runs that the folder holds.

    Returns:
        The result of the audit; ``partial`` is true if the user stopped it.

    Raises:
        ConfigError: If the folder holds another demo, or another process writes to it.
    """
    text = load_stdlib_text()
    source = demo_source(recipe, text)
    found = {} if overwrite else RunStore(folder, conditions(config, source)).load(config.controls)
    before = next((int(run["threads"]) for run in found.values()), None)
    with threads(number or before or fastest_threads(recipe, text)):
        return audit(
            demo_maker(recipe, text), config, folder, observer=observer, source=source,
            overwrite=overwrite,
        )  # fmt: skip


def demo_source(recipe: DemoRecipe, text: StdlibText) -> dict[str, Any]:
    """Return recipe and text, on which the runs depend, as plain data."""
    told: Mapping[str, Any] = {
        "sha256": text.sha256,
        "files": text.num_files,
        "train_bytes": text.train.numel(),
        "validation_bytes": text.val.numel(),
    }
    return {"recipe": recipe.to_dict(), "text": told}


def demo_maker(recipe: DemoRecipe, text: StdlibText) -> MakeRun:
    """Return the function that builds Trainer, model and data of an arm."""

    def make_run(arm: AuditArm) -> Any:
        steps = arm.scaled(recipe.steps)
        trainer = arm.trainer(
            max_steps=recipe.steps,
            gradient_clip_val=recipe.gradient_clip,
            accelerator="cpu",
            devices=1,
            log_every_n_steps=max(1, min(50, steps // 10)),
            val_check_interval=max(1, steps // recipe.validations),
            check_val_every_n_epoch=None,
        )
        model = build_module(recipe, steps, arm.seed, **arm.changes)
        return trainer, model, build_data(recipe, text, arm.seed)

    return make_run


def fastest_threads(recipe: DemoRecipe, text: StdlibText, most: int = 4) -> int:
    """Choose between one thread and several by timing a few forward and backward passes.

    On a busy machine threads wait for each other, and one is faster.

    Args:
        recipe: Sizes of model and batches.
        text: Training bytes.
        most: Most threads to try; a model this small gains little from more.

    Returns:
        The number of threads.
    """
    module, several = build_module(recipe, 1, 0), min(most, torch.get_num_threads())
    seconds = []
    for number in (1, several):
        batches = iter(TrainingBatches(text.train, recipe, 0))
        with threads(number):
            marks = []
            for _ in range(13):
                module(next(batches)[0]).square().mean().backward()
                marks.append(perf_counter())
        seconds.append(marks[-1] - marks[0])  # the first pass also sets up
    return several if seconds[1] < 0.85 * seconds[0] else 1
