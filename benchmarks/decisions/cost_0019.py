"""What cheaper corrected updates are worth: fewer polynomials, and fewer rows treated together.

``python -m benchmarks.decisions.cost_0019 --tasks TASK... --seeds N`` trains corrected updates
alone for T / 1.5 full steps, at the rates of ``docs/results/bench-*.json``, and adds one line per
run to ``docs/results/cost-0019.jsonl``. ``--table`` prints means of what is there.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch

from benchmarks.decisions.runs import FOLDER, add_runs
from benchmarks.tasks import TASKS
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.updates import SpectralUpdate, UpdateState

RESULTS = FOLDER / "cost-0019.jsonl"


@dataclass(frozen=True, kw_only=True)
class InParts(SpectralUpdate):
    """So many rows treated together, whatever the budget.

    Args:
        together: Rows of the shorter side; None for all.
    """

    together: int | None = None

    def direction(self, state: UpdateState, *args: Any) -> list[Any]:
        """Those of the spectral update, in the parts that are asked for."""
        state.block = self.together
        return super().direction(state, *args)

    def operations(
        self, like: Sequence[Any], backend: AbstractBackend[Any], block: int | None
    ) -> int:
        """No more than any budget."""
        return 0


WAYS: dict[str, SpectralUpdate] = {
    **{f"{k} polynomials": InParts(iterations=k) for k in (1, 2, 3, 4, 5)},
    **{f"{rows} rows": InParts(together=rows) for rows in (64, 32, 16, 8, 4, 1)},
}
"""Updates by name; those in parts have three polynomials."""


def main() -> None:
    """Train and add lines, or print means."""
    parser = argparse.ArgumentParser(description="Train cheaper corrected updates.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["gpt-0.2m", "inr", "mlp"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="Print means of what is there.")
    options = parser.parse_args()
    if options.table:
        _table()
        return
    torch.set_num_threads(1)
    for way in options.ways:
        kept = ("loss", "full_steps", "seconds")
        seeds = range(options.seeds)
        add_runs(WAYS[way], {"way": way}, options.tasks, seeds, RESULTS, kept, max_overhead=1e9)


def _table() -> None:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        found[row["way"]][row["task"]].append(row["loss"])
    for way, tasks in found.items():
        columns = [f"{task} {mean(runs):.3f} ({len(runs)})" for task, runs in tasks.items()]
        print(f"{way:14} {', '.join(columns)}")


if __name__ == "__main__":
    main()
