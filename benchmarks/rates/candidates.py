"""Compares thresholds of advances beyond 4: python -m benchmarks.rates.candidates --jobs 2."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import RESULTS
from benchmarks.arguments import positive
from benchmarks.plan import Row, as_cell, number
from benchmarks.rates.gains import at_shares, beside, mean, worst
from benchmarks.rates.study import DEVELOPMENT, best_rates, cell, nearest
from benchmarks.run import start_worker
from benchmarks.table import markdown
from benchmarks.tasks import TASKS
from benchmarks.train import Run, warm
from hybrid_predict.rules import pace
from hybrid_predict.rules.pace import Lagged, Pace, Thresholds, follow
from hybrid_predict.runs.rows import Rows

SHARES, SEED, FILE = (1 / 100, 1 / 30, 1 / 10), 1, "pace-far.jsonl"
Key = tuple[str, str, float]


def kept(advance: float) -> Callable[[Pace, Lagged], Pace]:
    """Return a rule that keeps one advance from the first window on."""

    def rule(before: Pace, lagged: Lagged) -> Pace:
        new = follow(before, lagged)
        return new._replace(advance=advance if new.windows else 0.0)

    return rule


def quadrupled(before: Pace, lagged: Lagged) -> Pace:
    """Double twice if the persistence is above .4."""
    new = follow(before, lagged)
    with (
        patch.object(pace, "NEAR", pace.NEAR._replace(rising=0.4)),
        patch.object(pace, "FAR", pace.FAR._replace(rising=0.4)),
    ):
        again = follow(before._replace(advance=new.advance), lagged)
    return again if again.advance > new.advance > before.advance else new


RULES: dict[str, dict[str, Any]] = {
    "at most 4": {"MOST": 4.0},
    "8, kept, up to 4 steps": {"follow": kept(8.0)},
    "8, kept, up to 8 steps": {"follow": kept(8.0), "MOST_PREDICTED": 8},
    "16, kept, up to 4 steps": {"follow": kept(16.0)},
    "above 4: .1, .03": {"FAR": Thresholds(0.1, 0.03, 0.1)},
    "above 4: .2, .1": {"FAR": Thresholds(0.2, 0.1, 0.1)},
    "above 4: .3, .15": {"FAR": Thresholds(0.3, 0.15, 0.1)},
    "above 4: .1, .03, worth .5": {"FAR": Thresholds(0.1, 0.03, 0.5)},
    "above 4: .2, .1, worth .5": {},
    "above 4: .2, .1, worth .5; quadruples above .4": {"follow": quadrupled},
}
"""What each candidate changes; the numbers are persistence that doubles and that halves."""


def measure(key: Key) -> dict[str, Any]:
    """Make one run, and return its row."""
    name, task, share = key
    warm(TASKS[task])
    changes = dict(RULES[name])
    with ExitStack() as stack:
        rule = changes.pop("follow", follow)
        stack.enter_context(patch("hybrid_predict.scores.follow", rule))
        for constant, value in changes.items():
            stack.enter_context(patch.object(pace, constant, value))
        run = Run(cell(task, "auto", SEED, best_rates()[task] * share, 1), TASKS[task])
        run.train()
    loss = TASKS[task].final_loss(run.model)
    row = {"rule": name, "task": task, "share": share, **run.counts()}
    return {**row, "loss": loss if run.finite else None}


def key_of(row: Row) -> Key:
    """Return the key of a row."""
    return row["rule"], row["task"], row["share"]


def keys() -> Iterator[Key]:
    """Return all runs; kept advances are not made at a tenth of the best rate."""
    for share in SHARES:
        for task in DEVELOPMENT:
            for name in RULES:
                if not (("kept" in name or ".3" in name) and share > 0.05):
                    yield name, task, share


def table(rows: Collection[Row], study: Iterable[Row]) -> str:
    """Return geometric means over tasks of gains over plain training at the same rate."""
    curves, lines = at_shares(study), []
    for name in RULES:
        cells = [name]
        for share in SHARES:
            ratios = {
                row["task"]: beside(
                    curves[row["task"], share, "plain"], number(row["loss"]), row["full_steps"]
                )
                for row in rows
                if row["rule"] == name and nearest(row["share"]) == share
            }
            cells.append(f"{mean(ratios.values())}, {worst(ratios)}" if ratios else "")
        lines.append(cells)
    return markdown(["advance", "1/100", "1/30", "1/10"], lines)


def main(argv: list[str] | None = None) -> None:
    """Make the runs that are missing."""
    parser = argparse.ArgumentParser("python -m benchmarks.rates.candidates", description=__doc__)
    parser.add_argument("--jobs", type=positive, default=1)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results file")
    asked = parser.parse_args(argv)
    store = Rows(asked.folder / FILE, key_of)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, context, initializer=start_worker) as pool:
        missing = [key for key in keys() if key not in store.done]
        for future in as_completed([pool.submit(measure, key) for key in missing]):
            store.add(row := future.result())
            print(*key_of(row), f"loss {number(row['loss']):.4f}", flush=True)
    print(table(store.done.values(), Rows(RESULTS / "rates.jsonl", as_cell).done.values()))


if __name__ == "__main__":
    main()
