"""The demo: the same small GPT trained in several arms with paired seeds, and what came of it."""

from __future__ import annotations

import hashlib
import json
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
from hybrid_predict.report.page import BELOW_SHORT, BEYOND_FULL, conclusion, run_folder, write_page
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
from hybrid_predict.runs.runtime import (
    Observer,
    environment,
    finite,
    locked,
    quiet,
    threads,
    write_json,
)
from hybrid_predict.runs.tracking import Tracking

Results = dict[str, Any]

_BOUNDS = {AT_LEAST: BEYOND_FULL, AT_MOST: BELOW_SHORT}

EXPERIMENT, RESULTS = "hybrid-predict demo", "results.json"
SCHEMA = 2

_VERSIONS = ("hybrid_predict", "torch", "lightning")

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
    plan: DemoPlan,
    folder: Path,
    observer: Observer | None = None,
    *,
    mlflow: bool = True,
    overwrite: bool = False,
) -> Results:
    """Make the runs that are missing; write ``results.json`` after each, and the report at the end.

    Args:
        plan: Which runs.
        folder: An existing folder for everything that is written.
        observer: Is told what happens.
        mlflow: Whether to record the runs in MLflow.
        overwrite: Whether to train anew what the folder holds already.

    Returns:
        What ``results.json`` holds; ``partial`` is true if the user stopped the demo.

    Raises:
        ConfigError: If the folder holds another demo, or another process writes to it.
    """
    observer = observer or Observer()
    with locked(folder), quiet():
        text = load_stdlib_text()
        runs = [] if overwrite else found_runs(plan, text, folder / RESULTS)
        known = {(run["seed"], run["arm"]): run for run in runs}
        fresh = any((seed, arm.name) not in known for seed, arm in plan.runs())
        tracking = _tracking(plan, text, folder) if mlflow and fresh else None
        try:
            for seed, arm in plan.runs():
                if arm.name == FULL:  # the first of its seed; all arms of a seed run alike
                    number: int | None = known.get((seed, FULL), {}).get("threads")
                if (seed, arm.name) in known:
                    observer.run_found(known[seed, arm.name])
                    continue
                number = number or plan.threads or fastest_threads(plan.recipe, text)
                runs.append(_train(plan, arm, seed, text, folder, number, tracking, observer))
                write_json(make_results(plan, text, runs), folder / RESULTS)
                observer.run_finished(runs[-1])
        except KeyboardInterrupt:
            pass  # the results say that they are partial
        results = make_results(plan, text, runs)
        files = [write_json(results, folder / RESULTS), write_page(results, folder)]
        if tracking is not None:
            _finish(tracking, results, files)
    return results


def _finish(tracking: Tracking, results: Results, files: list[Path]) -> None:
    losses = {
        f"{arm.replace(',', '')}/val_loss": summary["val_loss"]["mean"]
        for arm, summary in results["summary"].items()
    }
    tags = {"conclusion": results["conclusion"]["headline"]}
    tracking.finish(losses, tags, files, "KILLED" if results["partial"] else "FINISHED")


def found_runs(plan: DemoPlan, text: StdlibText, path: Path) -> list[dict[str, Any]]:
    """The runs of a results file, if it is there, that go with a plan.

    Raises:
        ConfigError: If they do not: another recipe, text or version.
    """
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text("utf-8"))
        runs: list[dict[str, Any]] = found["runs"]
        before = _conditions(found)
    except (OSError, ValueError, KeyError, TypeError):
        runs, before = [], None
    now = _conditions(make_results(plan, text, []))
    if before != now:
        what = sorted(k for k in now if before and before[k] != now[k]) or ["what cannot be read"]
        remedy = "Choose another --output-dir, or train anew with --overwrite."
        expected = "a folder without the results of another demo"
        raise ConfigError("--output-dir", expected, f"one with other {', '.join(what)}", remedy)
    return runs


def _conditions(results: Mapping[str, Any]) -> dict[str, Any]:
    """What the runs of a results file depend on."""
    versions = {name: results["environment"][name] for name in _VERSIONS}
    recipe = {"recipe": results["recipe"], "speedup": results["speedup"]}
    return {**recipe, "text": results["text"]["sha256"], "versions": versions}


def _tracking(plan: DemoPlan, text: StdlibText, folder: Path) -> Tracking:
    params = {**plan.recipe.to_dict(), "speedup": plan.speedup}
    depends_on = json.dumps(_conditions(make_results(plan, text, [])), sort_keys=True)
    key = hashlib.sha256(depends_on.encode()).hexdigest()
    return Tracking(folder, EXPERIMENT, "demo", params, key)


def _train(
    plan: DemoPlan,
    arm: Arm,
    seed: int,
    text: StdlibText,
    folder: Path,
    number: int,
    tracking: Tracking | None,
    observer: Observer,
) -> dict[str, Any]:
    """One run, in so many threads."""
    observer.run_started(arm.name, seed, arm.planned_full_steps)
    name, tags = f"{arm.name}, seed {seed}", {"arm": arm.name, "seed": str(seed)}
    logger = tracking.logger(name, tags) if tracking else None
    place = run_folder(folder, arm.name, seed)
    with threads(number):
        run = train_arm(plan.recipe, arm, seed, text, logger, observer.stepped, str(place))
    if tracking is not None and logger is not None:
        tracking.finish_run(logger, {k: float(run[k]) for k in _TRACKED})
    return run


def make_results(plan: DemoPlan, text: StdlibText, runs: Sequence[dict[str, Any]]) -> Results:
    """Everything that the results file holds, as plain data; non-finite numbers become None."""
    planned = {(seed, arm.name) for seed, arm in plan.runs()}
    planned |= {(run["seed"], run["arm"]) for run in runs}
    results: Results = {
        "schema": SCHEMA,
        "partial": len(runs) < len(planned),
        "planned_runs": len(planned),
        "seeds": max(plan.seeds, *(1 + run["seed"] for run in runs), 1),
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
