"""Trains tasks at learning rates that nobody tuned: python -m benchmarks.rates.

Stopped and started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.arguments import one_of, positive
from benchmarks.plan import as_cell
from benchmarks.plot import save_figure
from benchmarks.rates.plot import plot
from benchmarks.rates.study import (
    DEVELOPMENT,
    LENGTHS,
    SHARES,
    UNTUNED,
    best_rates,
    cells,
    run,
    steady_cells,
    untuned_cells,
)
from hybrid_predict.runs.rows import Row, Rows

ALL = tuple(dict.fromkeys((*LENGTHS, *UNTUNED)))
"""Arms at shares of the best rate, and arms at rates that know nothing of the task."""


def main(argv: list[str] | None = None) -> None:
    """Read the arguments, train, and draw."""
    parser = argparse.ArgumentParser("python -m benchmarks.rates", description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=DEVELOPMENT, type=one_of(best_rates()))
    parser.add_argument("--arms", nargs="+", default=ALL, type=one_of(ALL))
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES)
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--jobs", type=positive, default=1)
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results files")
    asked = parser.parse_args(argv)
    path = asked.folder / "rates.jsonl"
    store = Rows(path, as_cell)
    wanted = chain(
        cells(asked.tasks, asked.shares, asked.seeds, asked.arms),
        steady_cells(asked.tasks, asked.seeds, asked.arms),
        untuned_cells(asked.tasks, asked.seeds, asked.arms),
    )
    run(store, wanted, asked.jobs, _say)
    save_figure(plot(store.done.values()), path.with_suffix(".png"), path)


def _say(row: Row) -> None:
    loss = "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"
    print(f"{row['task']}, {row['arm']}, rate {row['rate']:g}, T = {row['steps']:,}, seed "
          f"{row['seed']}: {row['full_steps']:,} full steps, {loss}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
