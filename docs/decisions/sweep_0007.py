"""What decides whether spectral forecasts pay: the runs behind decision 7.

    python docs/decisions/sweep_0007.py docs/results/sweep-0007.jsonl [--jobs N]

Adds the rows that the file lacks, then prints a table from its rows and from the plain runs of
docs/results/bench-*.json.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import FixedHorizon, HybridConfig, HybridEngine, SpectralPredictor
from hybrid_predict.bench.arms import PLAIN, Rates, adamw
from hybrid_predict.evidence import speedup
from hybrid_predict.tasks import TASKS
from hybrid_predict.tasks.base import linear_schedule

RESULTS = Path(__file__).parent.parent / "results"
RATES = {"gpt-0.2m": 0.004, "cnn": 0.032, "inr": 0.016, "mlp": 0.008, "lora": 0.016, "pinn": 0.032}
"""The best rates of plain training for T full steps."""

SEEDS = (0, 1)


class UpdateKept(SpectralPredictor):
    """The same forecast in addition to the optimizer's update."""

    replaces_update: ClassVar[bool] = False

    def observe(self, state, displacement, applied, backend, gradient=None):  # type: ignore[no-untyped-def]
        """Flatten the average displacement, since no gradient is given."""
        down = [-x for x in displacement]
        super().observe(state, displacement, None, backend, down)


def _spectral(**changes: Any) -> dict[str, Any]:
    return {"predictors": {"hidden": SpectralPredictor(**changes)}}


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "horizon 1": {"horizon": FixedHorizon(updates=1.0)},
    "O every 2 full steps": _spectral(refresh_every=2),
    "horizon 4": {"horizon": FixedHorizon(updates=4.0)},
    "displacements, update kept": {
        "predictors": {"hidden": UpdateKept()}, "horizon": FixedHorizon(updates=0.7)},
}  # fmt: skip


def run(task_name: str, variant: str, seed: int) -> dict[str, Any]:
    """Train one run; its final loss and cost."""
    torch.set_num_threads(1)
    task = TASKS[task_name]
    model, batches = task.model(seed), task.batches(seed)
    (optimizer,) = adamw(model, task.recipe, Rates(RATES[task_name]), task.steps)
    decay = linear_schedule(task.steps, task.recipe.warmup_fraction)
    scheduler = LambdaLR(optimizer, decay)
    settings = {"speedup": 1.5, "total_steps": task.steps, "count_flops": False}
    with HybridEngine(model, optimizer, HybridConfig(**settings, **VARIANTS[variant])) as engine:
        while not engine.done:
            engine.before_step()
            loss = task.full_step(model, next(batches), optimizer)
            for _ in range(engine.after_step(loss).ticks):
                scheduler.step()
    loss = task.final_loss(model)
    return {
        "task": task_name,
        "variant": variant,
        "seed": seed,
        "loss": loss if math.isfinite(loss) else None,
        "cost": engine.ledger.cost,
    }


def plain_curves() -> dict[str, tuple[list[float], dict[str, dict[int, float]]]]:
    """Costs and losses by seed of the plain arms at the tuned rate, by task."""
    curves: dict[str, dict[str, dict[int, Any]]] = {}
    for path in sorted(RESULTS.glob("bench-*.json")):
        for row in json.loads(path.read_text())["runs"]:
            if row["setting"] == "tuned" and row["arm"] in PLAIN:
                found = curves.setdefault(row["task"], {}).setdefault(row["arm"], {})
                found[row["seed"]] = row
    return {
        task: (
            [next(iter(arms[a].values()))["cost"] for a in PLAIN],
            {a: {s: row["loss"] for s, row in arms[a].items()} for a in PLAIN},
        )
        for task, arms in curves.items()
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Speedups of every variant, two seeds each."""
    curves = plain_curves()
    lines = [f"| variant | {' | '.join(f'`{t}`' for t in RATES)} | geometric mean |",
             "|" + " --- |" * (len(RATES) + 2)]  # fmt: skip
    for variant in VARIANTS:
        if sum(r["variant"] == variant for r in rows) < len(RATES) * len(SEEDS):
            continue  # not run to its end
        values = []
        for task in RATES:
            own = [r for r in rows if (r["task"], r["variant"]) == (task, variant)]
            steps, losses = curves[task]
            plain = [[losses[a][r["seed"]] for r in own] for a in PLAIN]
            ends = [math.inf if r["loss"] is None else r["loss"] for r in own]
            costs = [r["cost"] for r in own]
            values.append(speedup(steps, plain, ends, costs, resamples=1).value)
        mean = math.exp(sum(map(math.log, values)) / len(values))
        cells = [f"{v:.2f}" for v in [*values, mean]]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    text = arguments.file.read_text() if arguments.file.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    done = {(r["task"], r["variant"], r["seed"]) for r in rows}
    cells = [(t, v, s) for v in VARIANTS for t in RATES for s in SEEDS if (t, v, s) not in done]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        for row in pool.map(run, *zip(*cells, strict=True)) if cells else ():
            rows.append(row)
            with arguments.file.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
