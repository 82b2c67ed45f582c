"""The demo: the same small GPT trained in several arms with paired seeds, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from hybrid_predict.config import HybridConfig
from hybrid_predict.demo.text import StdlibText, load_stdlib_text
from hybrid_predict.demo.training import (
    Arm,
    DemoRecipe,
    TrainingBatches,
    build_module,
    train_arm,
)
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.history import RunHistory
from hybrid_predict.report.page import BELOW_SHORT, BEYOND_FULL, conclusion, write_page
from hybrid_predict.runs.evidence import (
    AT_LEAST,
    AT_MOST,
    CONTROL,
    CORRECTED,
    FULL,
    HYBRID,
    SHORT,
    plain_steps_to_reach,
    spread,
)
from hybrid_predict.runs.runtime import Observer, environment, finite, quiet, threads, write_json
from hybrid_predict.runs.tracking import Tracking

Results = dict[str, Any]

_BOUNDS = {AT_LEAST: BEYOND_FULL, AT_MOST: BELOW_SHORT}

EXPERIMENT, RESULTS = "hybrid-predict demo", "results.json"
SCHEMA = 2

COMPARED = (FULL, SHORT, CORRECTED, HYBRID)
"""The arms that a seed needs to count in comparisons."""

_TRACKED = (
    "val_loss", "full_steps", "predicted_steps", "undone_steps", "steps", "seconds",
    "seconds_per_full_step",
)  # fmt: skip
_MEANS = ("full_steps", "predicted_steps", "undone_steps", "steps", "seconds")
_PAIRS = ((HYBRID, FULL), (HYBRID, SHORT), (CORRECTED, SHORT), (HYBRID, CORRECTED))


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """Which runs the demo makes.

    Args:
        recipe: What is trained.
        speedup: Steps per full step of the hybrid arm, above 1.
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
        most = self.recipe.steps / 10
        if not isinstance(self.speedup, (int, float)) or not 1 < self.speedup <= most:
            raise ConfigError("speedup", f"a number above 1 and at most {most:g}", self.speedup)
        for name in ("seeds", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, "an integer, at least 1", value)

    def arms(self) -> list[Arm]:
        """The arms, in the order in which each seed runs them."""
        steps = self.recipe.steps
        hybrid = Arm(HYBRID, steps, speedup=self.speedup)
        few = hybrid.planned_full_steps
        arms = [Arm(FULL, steps), Arm(SHORT, few), Arm(CORRECTED, few, speedup=1.0), hybrid]
        return [*arms, Arm(CONTROL, steps, hidden_factor=2.0)] if self.controls else arms

    def runs(self) -> list[tuple[int, Arm]]:
        """Seed by seed, so that a slow hour of the machine meets all arms alike."""
        return [(seed, arm) for seed in range(self.seeds) for arm in self.arms()]


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
        params = {**plan.recipe.to_dict(), "speedup": plan.speedup}
        tracking = Tracking(folder, EXPERIMENT, "demo", params) if mlflow else None
        try:
            for seed, arm in plan.runs():
                if arm.name == FULL:  # the first of its seed; all arms of a seed run alike
                    number = plan.threads or fastest_threads(plan.recipe, text)
                observer.run_started(arm.name, seed, arm.planned_full_steps)
                name, tags = f"{arm.name}, seed {seed}", {"arm": arm.name, "seed": str(seed)}
                logger = tracking.logger(name, tags) if tracking else None
                with threads(number):
                    run, its = train_arm(plan.recipe, arm, seed, text, logger, observer.stepped)
                runs.append(run)
                history = history or its
                write_json(make_results(plan, text, runs), folder / RESULTS)
                if tracking is not None and logger is not None:
                    tracking.finish_run(logger, {k: float(run[k]) for k in _TRACKED})
                observer.run_finished(run)
        except KeyboardInterrupt:
            pass  # the results say that they are partial
        results = make_results(plan, text, runs)
        files = [write_json(results, folder / RESULTS), write_page(results, history, folder)]
        if tracking is not None:
            losses = {
                f"{arm.replace(',', '')}/val_loss": summary["val_loss"]["mean"]
                for arm, summary in results["summary"].items()
            }
            tags = {"conclusion": results["conclusion"]["headline"]}
            tracking.finish(losses, tags, files, "KILLED" if results["partial"] else "FINISHED")
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
    plain: Results = finite(results)
    return plain


def compare(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics over the runs that are done; comparisons only over seeds that have all arms.

    Args:
        runs: Entries of the results file.

    Returns:
        ``summary`` per arm; ``paired`` differences of the final loss; ``overhead_ratio``, seconds
        of a hybrid full step over those of a plain one; ``plain_steps_to_reach``, full steps of
        plain training to the losses of the corrected and the hybrid arm.
    """
    arms: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        arms.setdefault(run["arm"], {})[run["seed"]] = run
    summary = {
        name: {
            "val_loss": spread([run["val_loss"] for run in by_seed.values()]),
            **{key: statistics.fmean(r[key] for r in by_seed.values()) for key in _MEANS},
        }
        for name, by_seed in arms.items()
    }
    full, short, corrected, hybrid = (arms.get(name, {}) for name in COMPARED)
    seeds = sorted(full.keys() & short.keys() & corrected.keys() & hybrid.keys())
    prices = [hybrid[k]["seconds_per_full_step"] / short[k]["seconds_per_full_step"] for k in seeds]
    found = {name: [arms[name][k]["val_loss"] for k in seeds] for name in COMPARED if seeds}
    reached = {}
    for name in (CORRECTED, HYBRID) if seeds else ():
        steps = short[seeds[0]]["full_steps"], full[seeds[0]]["full_steps"]
        plain = [statistics.fmean(found[arm]) for arm in (SHORT, FULL)]
        needed = plain_steps_to_reach(steps, plain, statistics.fmean(found[name]))
        reached[name] = _BOUNDS.get(needed.bound, needed.steps)
    return {
        "summary": summary,
        "paired": {
            f"{left} - {right}": spread(
                [a - b for a, b in zip(found.get(left, []), found.get(right, []), strict=True)]
            )
            for left, right in _PAIRS
        },
        "overhead_ratio": statistics.median(prices) if prices else None,
        "plain_steps_to_reach": reached,
    }
