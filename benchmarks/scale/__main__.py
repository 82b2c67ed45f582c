"""Trains models of several widths and lengths: python -m benchmarks.scale.

Stopped and started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.measure import without_advice
from benchmarks.plan import as_cell
from benchmarks.plot import save_figure
from benchmarks.run import tell
from benchmarks.scale.sizes import TASKS, Sizes
from benchmarks.scale.study import CASES, Study, measure
from hybrid_predict.cli.program import positive
from hybrid_predict.runs.rows import Rows
from hybrid_predict.runs.runtime import environment, threads, write_json


def main(argv: list[str] | None = None) -> None:
    """Read the arguments, and run."""
    parts = {"runs": _runs, "sizes": _sizes, "cost": _cost, "plot": _plot}
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", type=one_of(parts),
                        help="of runs, sizes, cost, plot; or all")  # fmt: skip
    parser.add_argument("--seeds", type=positive, help="paired seeds of a case (default: 1 or 2)")
    parser.add_argument("--untimed", action="store_true",
                        help="leave out seconds of sizes: other work runs beside them")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results files")
    asked = parser.parse_args(argv)
    with threads(1), without_advice():
        for name in asked.parts or parts:
            parts[name](asked)


def _runs(asked: argparse.Namespace) -> None:
    study = Study(Rows(asked.folder / "scale.jsonl", as_cell), tell)
    for case in CASES:
        study.run(replace(case, seeds=asked.seeds or case.seeds))


def _sizes(asked: argparse.Namespace) -> None:
    store = Rows(asked.folder / "sizes.jsonl", as_cell)
    study = Sizes(asked.folder / "unfinished", store, tell, timed=not asked.untimed)
    for task in TASKS:
        study.run(task, asked.seeds or 1)


def _cost(asked: argparse.Namespace) -> None:
    rows, path = [], asked.folder / "scale-cost.json"
    for row in measure():
        print(row)
        rows.append(row)
        write_json({"rows": rows, "environment": environment()}, path)
    print(path)


def _plot(asked: argparse.Namespace) -> None:
    from benchmarks.scale.plot import plot

    path, runs = asked.folder / "scale.png", asked.folder / "scale.jsonl"
    save_figure(plot(Rows(runs, as_cell).done.values()), path, runs)
    print(path)


if __name__ == "__main__":
    main()
