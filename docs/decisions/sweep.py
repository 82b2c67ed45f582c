"""Trains variants of the configuration on six small tasks: the runs behind decision pages.

A page's variants stand in a module of their own, such as sweep_0007.py:

    python docs/decisions/sweep.py 0007 [--jobs N] [--only VARIANT]

adds the rows that docs/results/sweep-0007.jsonl lacks, then prints a table from its rows and from
the plain runs of docs/results/bench-*.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.bench.arms import Build, Rates, adamw
from hybrid_predict.bench.figures import Summary
from hybrid_predict.bench.plan import number
from hybrid_predict.evidence import speedup
from hybrid_predict.tasks import TASKS, Task
from hybrid_predict.tasks.base import linear_schedule

RESULTS = Path(__file__).parent.parent / "results"
RATES = {"gpt-0.2m": 0.004, "cnn": 0.032, "inr": 0.016, "mlp": 0.008, "lora": 0.016, "pinn": 0.032}
"""The best rates of plain training for T full steps."""

SEEDS = (0, 1)


Each = Callable[[nn.Module, float], None]
Variants = Mapping[str, Mapping[str, Any]]
"""Arguments of HybridConfig by name of the variant."""


def variants_of(page: str) -> Variants:
    """The variants of a decision page."""
    found: Variants = importlib.import_module(f"sweep_{page}").VARIANTS
    return found


def train(
    task: Task,
    rate: float,
    changes: Mapping[str, Any],
    seed: int,
    each: Each | None = None,
    build: Build = adamw,
) -> tuple[nn.Module, HybridEngine]:
    """One run with linear decay.

    Args:
        task: What is trained.
        rate: Peak learning rate.
        changes: Arguments of HybridConfig.
        seed: Decides initial weights and batches.
        each: Called after every full step with the model and the training loss.
        build: Makes the only optimizer.
    """
    torch.set_num_threads(1)
    settings = {"speedup": 1.5, "total_steps": task.steps, "count_flops": False, **changes}
    model, batches = task.model(seed), task.batches(seed)
    (optimizer,) = build(model, task.recipe, Rates(rate), settings["total_steps"])
    decay = linear_schedule(settings["total_steps"], task.recipe.warmup_fraction)
    scheduler = LambdaLR(optimizer, decay)
    with HybridEngine(model, optimizer, HybridConfig(**settings)) as engine:
        while not engine.done:
            engine.before_step()
            loss = task.full_step(model, next(batches), optimizer)
            for _ in range(engine.after_step(loss).ticks):
                scheduler.step()
            if each is not None:
                each(model, float(loss.detach()))
    return model, engine


def run(page: str, task_name: str, variant: str, seed: int) -> dict[str, Any]:
    """Final loss and cost of one run."""
    task, changes = TASKS[task_name], variants_of(page)[variant]
    model, engine = train(task, RATES[task_name], changes, seed)
    loss = task.final_loss(model)
    return {
        "task": task_name,
        "variant": variant,
        "seed": seed,
        "loss": loss if math.isfinite(loss) else None,
        "cost": engine.ledger.cost,
    }


def summaries() -> dict[str, Summary]:
    """The committed benchmark by task."""
    found = map(Summary, (json.loads(p.read_text()) for p in sorted(RESULTS.glob("bench-*.json"))))
    return {task: summary for summary in found for task in summary.tasks}


def table(page: str, only: str = "") -> str:
    """Speedups of every variant that was run to its end, or of one of them, two seeds each."""
    rows, known = load(page), summaries()
    lines = [f"| variant | {' | '.join(f'`{t}`' for t in RATES)} | geometric mean |",
             "|" + " --- |" * (len(RATES) + 2)]  # fmt: skip
    for variant in [only] if only else variants_of(page):
        if sum(r["variant"] == variant for r in rows) < len(RATES) * len(SEEDS):
            continue
        values = []
        for task in RATES:
            own = [r for r in rows if (r["task"], r["variant"]) == (task, variant)]
            steps = known[task].budgets(task, "tuned")
            plain = known[task].plain(task, "tuned", [r["seed"] for r in own])
            ends, costs = [number(r["loss"]) for r in own], [r["cost"] for r in own]
            values.append(speedup(steps, plain, ends, costs, resamples=1).value)
        mean = math.exp(sum(map(math.log, values)) / len(values))
        cells = [f"{v:.2f}" for v in [*values, mean]]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def path_of(page: str) -> Path:
    """The file of a page's runs."""
    return RESULTS / f"sweep-{page}.jsonl"


def load(page: str) -> list[dict[str, Any]]:
    """The runs of a page."""
    path = path_of(page)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


Rows = list[dict[str, Any]]
Measure = Callable[[Callable[..., Any], list[tuple[Any, ...]]], dict[tuple[Any, ...], Any]]
"""Calls a function with every cell, in parallel; what it returned by cell."""


def study(
    stem: str,
    make: Callable[[Measure], Rows],
    show: Callable[[Rows], str],
    doc: str | None,
    seeds: Sequence[int] = SEEDS,
) -> None:
    """Run a decision page's own script: write its rows and print their table.

    Args:
        stem: Of the results file.
        make: Makes the rows.
        show: Makes the table of them.
        doc: What ``--help`` says.
        seeds: Those of the runs.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--jobs", type=int, default=1)
    with ProcessPoolExecutor(parser.parse_args().jobs, get_context("spawn")) as pool:

        def measure(
            function: Callable[..., Any], cells: list[tuple[Any, ...]]
        ) -> dict[tuple[Any, ...], Any]:
            found = pool.map(function, *zip(*cells, strict=True))
            return dict(zip(cells, found, strict=True))

        rows = make(measure)
    text = json.dumps({"seeds": list(seeds), "rows": rows}, indent=1)
    (RESULTS / f"{stem}.json").write_text(text + "\n")
    print(show(rows))


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", help="number of the decision, such as 0007")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", help="a variant; may be repeated")
    chosen = parser.parse_args()
    done = {(r["task"], r["variant"], r["seed"]) for r in load(chosen.page)}
    known = list(variants_of(chosen.page))
    names = chosen.only or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--only: expected variants out of {known}, got {unknown}")
    cells = [(t, v, s) for v in names for t in RATES for s in SEEDS if (t, v, s) not in done]
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        for row in pool.map(partial(run, chosen.page), *zip(*cells, strict=True)) if cells else ():
            with path_of(chosen.page).open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(table(chosen.page))


if __name__ == "__main__":
    main()
