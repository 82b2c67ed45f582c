"""The demo: the same small GPT trained in several arms with paired seeds, and what came of it."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.page import BELOW_SHORT, BEYOND_FULL, conclusion, write_page
from hybrid_predict.tasks.stdlib_gpt import (
    CONTROL,
    FULL,
    HYBRID,
    SHORT,
    Arm,
    DemoRecipe,
    TrainingBatches,
    build_module,
    train_arm,
)
from hybrid_predict.tasks.stdlib_text import StdlibText, load_stdlib_text

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger

Results = dict[str, Any]

EXPERIMENT = "hybrid-predict demo"
SCHEMA = 1

_CHATTY_LOGGERS = (
    "alembic",
    "lightning.pytorch.utilities.rank_zero",
    "mlflow.store.db.utils",
)
_ADVICE = ("does not have many workers", "GPU available but not used", "isinstance\\(treespec")


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """Which runs the demo makes.

    Args:
        recipe: What is trained.
        speedup: Equivalent steps per full step of the hybrid arm, above 1.
        seeds: Number of paired seeds, at least 1.
        controls: Adds the full arm with the hidden matrices' learning rate doubled.
        threads: Threads of torch; None tries before each seed which number is fastest.

    Raises:
        ConfigError: If a value is out of range.
    """

    recipe: DemoRecipe = field(default_factory=DemoRecipe)
    speedup: float = 1.5
    seeds: int = 3
    controls: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        HybridConfig(speedup=self.speedup)
        if self.speedup <= 1 or round(self.recipe.steps / self.speedup) < 10:
            most = self.recipe.steps / 10
            raise ConfigError("speedup", f"a number above 1 and at most {most:g}", self.speedup)
        for name in ("seeds", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, "an integer, at least 1", value)

    def arms(self) -> list[Arm]:
        """The arms, in the order in which each seed runs them."""
        steps = self.recipe.steps
        arms = [
            Arm(FULL, steps),
            Arm(SHORT, round(steps / self.speedup)),
            Arm(HYBRID, steps, speedup=self.speedup),
        ]
        return [*arms, Arm(CONTROL, steps, hidden_factor=2.0)] if self.controls else arms

    def runs(self) -> list[tuple[int, Arm]]:
        """Seed by seed, so that a slow hour of the machine meets all arms alike."""
        return [(seed, arm) for seed in range(self.seeds) for arm in self.arms()]


class Observer:
    """Is told what happens while the demo runs; does nothing."""

    def run_started(self, arm: Arm, seed: int) -> None:
        """A run begins."""

    def stepped(self, full_steps: int, loss: float) -> None:
        """A run has done so many full steps; called at some of them."""

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """A run is done; its entry of the results file."""


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back Lightning's banner and advice and MLflow's notes on its new database."""
    loggers = [logging.getLogger(name) for name in _CHATTY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _ADVICE:
                warnings.filterwarnings("ignore", f".*{message}")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch compute in so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest_threads(recipe: DemoRecipe, text: StdlibText, most: int = 4) -> int:
    """Several threads, or 1 where other work keeps the processors too busy for them to meet.

    Args:
        recipe: Gives model and batches.
        text: Gives batches.
        most: Limit; a model this small gains little from more.

    Returns:
        The number of threads, from the time of a few forward and backward passes.
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
        seconds.append(marks[-1] - marks[0])  # the first pass prepares
    return several if seconds[1] < 0.85 * seconds[0] else 1


class Tracking:
    """The demo's MLflow experiment: a parent run, and below it one run per arm and seed.

    Args:
        folder: Where database and artifacts are.
        plan: The demo's plan, for the parent's parameters.
    """

    def __init__(self, folder: Path, plan: DemoPlan) -> None:
        from mlflow import MlflowClient

        self.uri = tracking_uri(folder)
        self._client = MlflowClient(self.uri)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        place = (folder / "mlartifacts").resolve().as_uri()
        experiment = (
            found.experiment_id
            if found
            else self._client.create_experiment(EXPERIMENT, artifact_location=place)
        )
        self._parent = self._client.create_run(experiment, run_name="demo").info.run_id
        for name, value in {**plan.recipe.to_dict(), "speedup": plan.speedup}.items():
            self._client.log_param(self._parent, name, value)

    def logger(self, arm: Arm, seed: int) -> MLFlowLogger:
        """The Trainer's logger for one run."""
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(
            EXPERIMENT,
            run_name=f"{arm.name}, seed {seed}",
            tracking_uri=self.uri,
            tags={"mlflow.parentRunId": self._parent, "arm": arm.name, "seed": str(seed)},
            synchronous=False,
        )

    def finish_run(self, logger: MLFlowLogger, run: Mapping[str, Any]) -> None:
        """Add what is known only after training to one run."""
        names = ("val_loss", "full_steps", "equivalent_steps", "seconds", "seconds_per_full_step")
        for name in names:
            self._client.log_metric(str(logger.run_id), name, float(run[name]))

    def finish(self, results: Results, files: Sequence[Path]) -> None:
        """Add summary and files to the parent run and end it."""
        import mlflow

        for arm, summary in results["summary"].items():
            metric = f"{arm.replace(',', '')}/val_loss"
            self._client.log_metric(self._parent, metric, summary["val_loss"]["mean"] or math.nan)
        self._client.set_tag(self._parent, "conclusion", results["conclusion"]["headline"])
        for path in files:
            self._client.log_artifact(self._parent, str(path))
        mlflow.flush_async_logging()
        status = "KILLED" if results["partial"] else "FINISHED"
        self._client.set_terminated(self._parent, status)


def tracking_uri(folder: Path) -> str:
    """Where MLflow finds the demo's runs."""
    return f"sqlite:///{(folder / 'mlflow.db').resolve()}"


def run_demo(
    plan: DemoPlan, folder: Path, observer: Observer | None = None, *, mlflow: bool = True
) -> Results:
    """Make all runs; write ``results.json`` after each, and ``report.html`` at the end.

    Args:
        plan: Which runs.
        folder: An existing folder for everything that is written.
        observer: Is told what happens.
        mlflow: Whether to record the runs in MLflow.

    Returns:
        What ``results.json`` holds; ``partial`` is true if the user stopped the demo.
    """
    observer = observer or Observer()
    runs: list[dict[str, Any]] = []
    history: RunHistory | None = None
    with quiet():
        text = load_stdlib_text()
        tracking = Tracking(folder, plan) if mlflow else None
        try:
            for seed, arm in plan.runs():
                if arm.name == FULL:  # the first of its seed; all arms of a seed run alike
                    number = plan.threads or fastest_threads(plan.recipe, text)
                observer.run_started(arm, seed)
                logger = tracking.logger(arm, seed) if tracking else None
                with threads(number):
                    run, its = train_arm(plan.recipe, arm, seed, text, logger, observer.stepped)
                runs.append(run)
                history = history or its
                write_results(make_results(plan, text, runs), folder)
                if tracking is not None and logger is not None:
                    tracking.finish_run(logger, run)
                observer.run_finished(run)
        except KeyboardInterrupt:
            pass  # the results say that they are partial
        results = make_results(plan, text, runs)
        files = [write_results(results, folder), write_page(results, history, folder)]
        if tracking is not None:
            tracking.finish(results, files)
    return results


def make_results(plan: DemoPlan, text: StdlibText, runs: Sequence[dict[str, Any]]) -> Results:
    """Everything that the results file holds, as plain data; non-finite numbers become None."""
    results: Results = {
        "schema": SCHEMA,
        "partial": len(runs) < len(plan.runs()),
        "planned_runs": len(plan.runs()),
        "seeds": plan.seeds,
        "speedup": plan.speedup,
        "environment": environment(),
        "text": {
            "sha256": text.sha256,
            "files": text.num_files,
            "train_bytes": text.train.numel(),
            "validation_bytes": text.val.numel(),
        },
        "recipe": plan.recipe.to_dict(),
        "config": HybridConfig(speedup=plan.speedup).to_dict(),
        "runs": list(runs),
        **compare(runs),
    }
    results["conclusion"] = conclusion(results)
    finite: Results = _finite(results)
    return finite


def write_results(results: Results, folder: Path) -> Path:
    """Write ``results.json``, complete or not at all."""
    path, draft = folder / "results.json", folder / "results.json.part"
    draft.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return draft.replace(path)


def environment() -> dict[str, Any]:
    """Versions and hardware that results depend on."""
    return {
        "hybrid_predict": version("hybrid-predict"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
    }


def compare(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics over the runs that are done; comparisons only over seeds that have all arms.

    Args:
        runs: Entries of the results file.

    Returns:
        ``summary`` per arm, ``paired`` differences, ``overhead_ratio``, ``equivalent_plain_steps``.
    """
    arms: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        arms.setdefault(run["arm"], {})[run["seed"]] = run
    summary = {
        name: {
            "val_loss": spread([run["val_loss"] for run in by_seed.values()]),
            "full_steps": statistics.fmean(run["full_steps"] for run in by_seed.values()),
            "equivalent_steps": statistics.fmean(r["equivalent_steps"] for r in by_seed.values()),
            "seconds": statistics.fmean(run["seconds"] for run in by_seed.values()),
        }
        for name, by_seed in arms.items()
    }
    full, short, hybrid = (arms.get(name, {}) for name in (FULL, SHORT, HYBRID))
    seeds = sorted(full.keys() & short.keys() & hybrid.keys())
    prices = [hybrid[k]["seconds_per_full_step"] / short[k]["seconds_per_full_step"] for k in seeds]
    plain = None
    if seeds:
        losses = [statistics.fmean(a[k]["val_loss"] for k in seeds) for a in (short, full, hybrid)]
        steps = short[seeds[0]]["full_steps"], full[seeds[0]]["full_steps"]
        plain = equivalent_plain_steps(steps, (losses[0], losses[1]), losses[2])
    return {
        "summary": summary,
        "paired": {
            f"{HYBRID} - {name}": spread([hybrid[k]["val_loss"] - a[k]["val_loss"] for k in seeds])
            for name, a in ((FULL, full), (SHORT, short))
        },
        "overhead_ratio": statistics.median(prices) if prices else None,
        "equivalent_plain_steps": plain,
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (None below two values) and number of values."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "n": len(values),
    }


def equivalent_plain_steps(
    steps: tuple[int, int], losses: tuple[float, float], loss: float
) -> float | str:
    """Full steps after which plain training would have ended at a given loss.

    Interpolated linearly in the logarithm of the steps between two plain runs, each with a schedule
    of its own; nothing is extrapolated.

    Args:
        steps: Full steps of the short and of the full run.
        losses: Their validation losses.
        loss: The loss asked for.

    Returns:
        The number of full steps, or that it lies outside the two runs.
    """
    short, full = losses
    if loss < full:
        return BEYOND_FULL
    if loss > short:
        return BELOW_SHORT
    share = (short - loss) / (short - full) if short != full else 1.0
    return math.exp(math.log(steps[0]) + share * math.log(steps[1] / steps[0]))


def _finite(value: Any) -> Any:
    """The same plain data with None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
