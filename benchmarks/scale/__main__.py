"""Trains models of several widths and lengths: python -m benchmarks.scale.

Stopped and started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from benchmarks.plan import TUNING, as_cell
from benchmarks.plot import save_figure
from benchmarks.quiet import without_advice
from benchmarks.scale.cost import measure
from benchmarks.scale.sizes import CASES
from benchmarks.scale.study import Study
from hybrid_predict.runs.rows import Row, Rows
from hybrid_predict.runs.runtime import environment, threads, write_json

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def main(argv: list[str] | None = None) -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of runs, cost, plot; or all")
    parser.add_argument("--seeds", type=int, help="paired seeds of every case (default: 1 or 2)")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="of the results files")
    asked = parser.parse_args(argv)
    parts = {"runs": _runs, "cost": _cost, "plot": _plot}
    if unknown := [name for name in asked.parts if name not in parts]:
        parser.error(f"no part is named {unknown[0]!r}; there are {', '.join(parts)}")
    if asked.seeds is not None and asked.seeds < 1:
        parser.error("--seeds: expected at least 1")
    with threads(1), without_advice():
        for name in asked.parts or parts:
            parts[name](asked)


def _runs(asked: argparse.Namespace) -> None:
    study = Study(Rows(asked.folder / "scale.jsonl", as_cell), _say)
    for case in CASES:
        study.run(replace(case, seeds=asked.seeds or case.seeds))


def _say(row: Row) -> None:
    loss = "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"
    trial = ", trial" if row["setting"] == TUNING else ""
    print(
        f"{row['task']}, {row['arm']}, T = {row['steps']:,}, rate {row['rate']:g} x "
        f"{row['hidden']:g}, seed {row['seed']}{trial}: {row['full_steps']:,} full steps in "
        f"{row['seconds']:.1f} s, {loss}",
        flush=True,
    )


def _cost(asked: argparse.Namespace) -> None:
    rows, path = [], asked.folder / "scale-cost.json"
    for row in measure(print):
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
