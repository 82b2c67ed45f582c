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
from typing import TYPE_CHECKING, Any

import torch

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.history import RunHistory
from hybrid_predict.tasks.stdlib_gpt import Arm, DemoRecipe, train_arm
from hybrid_predict.tasks.stdlib_text import StdlibText, load_stdlib_text

if TYPE_CHECKING:
    from lightning.pytorch.loggers import MLFlowLogger

Results = dict[str, Any]

FULL, SHORT, HYBRID, CONTROL = "full", "short", "hybrid", "full, hidden x2"
EXPERIMENT = "hybrid-predict demo"
BEYOND_FULL, BELOW_SHORT = "beyond full", "below short"
SCHEMA = 1
FEW_SEEDS = 5

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

    Raises:
        ConfigError: If a value is out of range.
    """

    recipe: DemoRecipe = field(default_factory=DemoRecipe)
    speedup: float = 1.5
    seeds: int = 3
    controls: bool = False

    def __post_init__(self) -> None:
        HybridConfig(speedup=self.speedup)
        if self.speedup <= 1 or round(self.recipe.steps / self.speedup) < 10:
            most = self.recipe.steps / 10
            raise ConfigError("speedup", f"a number above 1 and at most {most:g}", self.speedup)
        if self.seeds < 1:
            raise ConfigError("seeds", "an integer, at least 1", self.seeds)

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
            self._client.log_metric(logger.run_id, name, float(run[name]))

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
    from hybrid_predict.report.page import write_page

    observer = observer or Observer()
    runs: list[dict[str, Any]] = []
    history: RunHistory | None = None
    with quiet():
        text = load_stdlib_text()
        tracking = Tracking(folder, plan) if mlflow else None
        try:
            for seed, arm in plan.runs():
                observer.run_started(arm, seed)
                logger = tracking.logger(arm, seed) if tracking else None
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
        "threads": torch.get_num_threads(),
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


def conclusion(results: Mapping[str, Any]) -> dict[str, str]:
    """What the results say in plain words: a headline and a paragraph."""
    n = results["paired"][f"{HYBRID} - {FULL}"]["n"]
    done = f"{len(results['runs'])} of {results['planned_runs']} runs are done."
    if not n:
        return {"headline": "Nothing to compare yet", "text": f"Stopped early: {done}"}
    if not all(math.isfinite(run["val_loss"]) for run in results["runs"]):
        text = "At least one run ended with a loss that is no finite number; lower --learning-rate."
        return {"headline": "No comparison: a run diverged", "text": text}
    if n < FEW_SEEDS:
        source = f"A hint from {n} paired seed{'s' if n > 1 else ''}"
    else:
        source = f"Over {n} paired seeds"
    finding, sentences = _finding(results)
    sentences += _details(results, n)
    if results["partial"]:
        sentences.append(f"The demo was stopped early: {done}")
    return {"headline": f"{source}: {finding}", "text": " ".join(sentences)}


def _finding(results: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The main result in one phrase, and the sentences that explain it."""
    full, short, hybrid = (results["summary"][name] for name in (FULL, SHORT, HYBRID))
    taken, plain = hybrid["full_steps"], results["equivalent_plain_steps"]
    saved = 1 - taken / full["full_steps"]
    explained = [
        f"After {taken:,.0f} full steps the hybrid arm's mean validation loss is "
        f"{hybrid['val_loss']['mean']:.4f} nats per byte; plain training is at "
        f"{short['val_loss']['mean']:.4f} after {short['full_steps']:,.0f} full steps, with its "
        f"schedule shortened to them, and at {full['val_loss']['mean']:.4f} after "
        f"{full['full_steps']:,.0f}."
    ]
    if plain == BEYOND_FULL:
        explained.append(
            "That is below the full run, so how many full steps plain training would have needed "
            "is more than were tried."
        )
        return f"lower loss than the full run, with {saved:.0%} fewer full steps", explained
    if plain == BELOW_SHORT or plain <= taken:
        explained.append("Forecasts did not pay here.")
        return "no gain over plain training with as many full steps", explained
    explained.append(
        f"By interpolation between those two, plain training would have needed about {plain:,.0f} "
        "full steps to end where the hybrid arm does."
    )
    return f"{taken:,.0f} hybrid full steps do the work of {plain:,.0f} plain ones", explained


def _details(results: Mapping[str, Any], n: int) -> list[str]:
    """Sentences on seeds, seconds, the control and the strength of the evidence."""
    summary = results["summary"]
    by_arm = {name: {r["seed"]: r for r in results["runs"] if r["arm"] == name} for name in summary}
    hybrid = by_arm[HYBRID]

    def wins(name: str) -> str:
        common = hybrid.keys() & by_arm[name].keys()
        better = sum(hybrid[k]["val_loss"] < by_arm[name][k]["val_loss"] for k in common)
        return f"{better} of {len(common)}"

    sentences = [
        f"The hybrid arm's loss is lower than the short arm's on {wins(SHORT)} seeds and lower "
        f"than the full arm's on {wins(FULL)}.",
        f"A hybrid full step took {results['overhead_ratio']:.2f} times as long as a plain one, "
        f"the hybrid arm {summary[HYBRID]['seconds'] / summary[FULL]['seconds']:.0%} of the full "
        "arm's training time.",
    ]
    if CONTROL in summary:
        sentences.append(
            "With the learning rate of the hidden matrices doubled, plain training ends at "
            f"{summary[CONTROL]['val_loss']['mean']:.4f} after "
            f"{summary[CONTROL]['full_steps']:,.0f} full steps."
        )
    if n < FEW_SEEDS:
        sentences.append(f"So few seeds of one small task are a hint; try --seeds {FEW_SEEDS}.")
    else:
        difference = results["paired"][f"{HYBRID} - {FULL}"]
        error = difference["sd"] / math.sqrt(n)
        sentences.append(
            f"The paired difference hybrid - full is {difference['mean']:+.4f} with a standard "
            f"error of {error:.4f}."
        )
    return sentences


def _finite(value: Any) -> Any:
    """The same plain data with None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
