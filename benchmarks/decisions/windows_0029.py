"""How lengths are fitted: prediction errors by weight, memory and ridge; what lengths are worth.

``python -m benchmarks.decisions.windows_0029`` trains the tasks of `core` and `wide`, at the best
rate of plain training and a tenth of it, corrected and not, without predicted steps. All windows
are recorded, and each way to fit is replayed on them: its coefficients after the windows before
foretell the next one. Then the default is trained beside corrected updates alone in as many full
steps, at a tenth of the rate. Everything is written into ``docs/results/windows-0029.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arms import ARMS
from benchmarks.decisions.runs import FOLDER, tuned
from benchmarks.run import start_worker
from benchmarks.table import markdown
from benchmarks.tasks import TASKS
from benchmarks.train import Run, train
from hybrid_predict.forecast.predictors import AbstractPredictor, FittedPredictor
from hybrid_predict.forecast.window import Reading
from hybrid_predict.report.shared import mean_and_sd
from hybrid_predict.runs.evidence import spread

PATH = FOLDER / "windows-0029.json"
TASK_NAMES = ("gpt-0.2m", "cnn", "inr", "mlp", "lora", "pinn", "autoencoder")
RATES = (1.0, 0.1)
SEEDS = 2
WEIGHTS = ("alike", "by tensor", "by square")
MEMORIES = (0.7, 0.8, 0.9, 1.0)
RIDGES = (0.0, 0.3, 1.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Recorded(AbstractPredictor):
    """Forecasts as the default does, and keeps every reading."""

    readings: list[Reading] = field(default_factory=list)
    init, observe = FittedPredictor().init, FittedPredictor().observe
    forecast, directions = FittedPredictor().forecast, FittedPredictor().directions

    def fit(self, state: Any, reading: Reading) -> None:
        """Keep the reading, and fit nothing."""
        self.readings.append(reading)


def errors(readings: Sequence[Reading], weight: str, memory: float, ridge: float) -> NDArray[Any]:
    """Squared prediction errors of windows 2, 3, ... as shares of the squared movement."""
    sums, found = np.zeros((2, 1)), []
    coefficients = None
    for one in readings:
        square, target = one.directions[:, 0, 0], one.targets[:, 0]
        moved = one.gram[:, 0, 0] / one.steps**2
        if coefficients is not None:
            off = moved - 2 * coefficients * target + coefficients**2 * square
            found.append(off.sum() / moved.sum())
        scale = {"alike": square.sum(), "by tensor": square, "by square": 1.0}[weight]
        sums = memory * sums + np.stack([square, target]) / scale
        total = sums.sum(1)
        coefficients = (sums[1] + ridge * sums[0] * total[1] / total[0]) / ((1 + ridge) * sums[0])
        length = np.sqrt((coefficients**2 * square).sum() / square.sum())
        coefficients = coefficients / max(1.0, length)
    return np.array(found)


def record(task: str, rate: float, corrected: bool) -> dict[str, Any]:
    """Errors of every way to fit on one run, and the coefficients that its windows ask for."""
    predictor = Recorded()
    updates: dict[str, Any] = {} if corrected else {"updates": {}}
    plugin = {"warmup_steps": TASKS[task].steps, "predictors": {"hidden": predictor}, **updates}
    ARMS["recorded"] = replace(ARMS["hybrid"], name="recorded", plugin=plugin)
    cell = tuned()[task]
    Run(replace(cell, arm="recorded", rate=rate * cell.rate), TASKS[task]).train()
    pooled = [float(r.targets.sum() / r.directions.sum()) for r in predictor.readings]
    return {
        "task": task, "rate": rate, "corrected": corrected, "fitted": np.round(pooled, 3).tolist(),
        "errors": [
            {"weight": w, "memory": m, "ridge": r, "mean": float(e.mean()),
             "early": float(e[:5].mean())}
            for w in WEIGHTS for m in MEMORIES for r in RIDGES
            for e in [errors(predictor.readings, w, m, r)]
        ],
    }  # fmt: skip


def pair(task: str, rate: float, seed: int) -> dict[str, Any]:
    """The default, and corrected updates alone in as many full steps, at a share of the rate."""
    cell = tuned()[task]
    own = replace(cell, arm="hybrid", rate=rate * cell.rate, seed=seed)
    made = train(own, TASKS[task])
    name = "as-many"
    ARMS[name] = replace(ARMS["corrected"], name=name, share=made["full_steps"] / own.steps)
    alone = train(replace(own, arm=name), TASKS[task])
    counts = {key: made[key] for key in ("full_steps", "predicted_steps", "mean_length")}
    told = {"task": task, "rate": rate, "seed": seed, **counts}
    return {**told, "loss": made["loss"], "corrected": alone["loss"]}


def blocks() -> dict[str, Callable[[], str]]:
    """The blocks of pages."""
    return {
        "windows fits": lambda: fits_table(load()),
        "windows pairs": lambda: pairs_table(load()),
    }


def load() -> dict[str, Any]:
    """Read the results file."""
    found: dict[str, Any] = json.loads(PATH.read_text())
    return found


def fits_table(found: dict[str, Any]) -> str:
    """Mean prediction errors of the ways to fit, over all runs and over the first five windows."""
    rows = []
    for weight in WEIGHTS:
        for memory, ridge in ((0.9, 1.0), (0.8, 0.3), (0.8, 0.0), (0.7, 0.3), (1.0, 0.3)):
            own = [
                e for r in found["records"] for e in r["errors"]
                if (e["weight"], e["memory"], e["ridge"]) == (weight, memory, ridge)
            ]  # fmt: skip
            means = [f"{np.mean([e[n] for e in own]):.3f}" for n in ("mean", "early")]
            rows.append([weight, f"{memory:g}", f"{ridge:g}", *means])
    return markdown(["windows weigh", "memory", "ridge", "error", "error, first five"], rows)


def pairs_table(found: dict[str, Any]) -> str:
    """Losses of the default and of corrected updates alone in as many full steps."""
    rows = []
    for task in TASK_NAMES:
        own = [p for p in found["pairs"] if p["task"] == task]
        means = {n: np.mean([p[n] for p in own]) for n in ("full_steps", "predicted_steps")}
        losses = [mean_and_sd(spread([p[n] for p in own]), 4) for n in ("loss", "corrected")]
        off = mean_and_sd(spread([p["loss"] - p["corrected"] for p in own]), 4)
        length = f"{np.mean([p['mean_length'] for p in own]):.2f}"
        counts = [f"{mean:,.0f}" for mean in means.values()]
        rows.append([f"`{task}`", *counts, length, *losses, off])
    titles = ["task", "full steps", "predicted steps", "length", "default", "corrected alone",
              "difference"]  # fmt: skip
    return markdown(titles, rows)


def main() -> None:
    """Train, replay and write."""
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=start_worker) as pool:
        runs = [(t, r, c) for t in TASK_NAMES for r in RATES for c in (True, False)]
        records = list(pool.map(record, *zip(*runs, strict=True)))
        several = [(t, RATES[1], s) for t in TASK_NAMES for s in range(SEEDS)]
        pairs = list(pool.map(pair, *zip(*several, strict=True)))
    PATH.write_text(json.dumps({"records": records, "pairs": pairs}, indent=1) + "\n")
    print(fits_table(load()), pairs_table(load()), sep="\n\n")


if __name__ == "__main__":
    main()
