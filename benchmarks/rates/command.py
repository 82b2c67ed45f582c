"""``python -m benchmarks rates``: trains tasks at learning rates that nobody tuned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.plan import as_cell
from benchmarks.plot import save_figure
from benchmarks.rates import study
from benchmarks.rates.plot import plot
from benchmarks.run import tell
from benchmarks.tasks import FRESH
from hybrid_predict.cli.program import Command, need, positive

ALL = tuple(dict.fromkeys((*study.LENGTHS, *study.UNTUNED)))
"""Arms at shares of the best rate, and arms at rates that know nothing of the task."""

KNOWN = (*study.DEVELOPMENT, *(task.name for task in FRESH))


def _add_options(add: Callable[..., Any]) -> None:
    add("--tasks", nargs="+", default=study.DEVELOPMENT, type=one_of(KNOWN), metavar="NAME",
        help="Tasks (the seven of the suites core and wide).")  # fmt: skip
    add("--arms", nargs="+", default=ALL, type=one_of(ALL), metavar="NAME", help="Arms (all).")
    add("--shares", nargs="*", type=float, default=study.SHARES, metavar="X",
        help="Learning rates, as shares of the best one (1/100 to 3).")  # fmt: skip
    add("--seeds", type=positive, default=1, metavar="N", help="Paired seeds (1).")
    add("--jobs", type=positive, default=1, metavar="N", help="Processes, one thread each (1).")
    add("--folder", type=Path, default=RESULTS, metavar="FOLDER",
        help="Folder of rates.jsonl and its figure (docs/results).")  # fmt: skip


def _run(asked: Any) -> int:
    need("The study", ("cli", "bench"))
    path = asked.folder / "rates.jsonl"
    wanted = chain(
        study.cells(asked.tasks, asked.shares, asked.seeds, asked.arms),
        study.steady_cells(asked.tasks, asked.seeds, asked.arms),
        study.untuned_cells(asked.tasks, asked.seeds, asked.arms),
    )
    store = study.make_missing(path, as_cell, wanted, study.train_one, asked.jobs, tell)
    save_figure(plot(store.done.values()), path.with_suffix(".png"), path)
    return 0


COMMAND = Command(
    "Train at learning rates that nobody tuned.",
    "Trains tasks at shares of the learning rate that is best for plain training: plain, with "
    "corrected updates, and with speedup=auto; then at rates that know nothing of the task. "
    "Stopped and started again, it goes on where it was.",
    _add_options,
    _run,
)
