"""Measures what windows show, and what more predicted steps do to the end: data for `rules.pace`.

Runs keep one advance from the first window on: python -m benchmarks.rates.signals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

from benchmarks.plan import Row
from benchmarks.rates import study
from benchmarks.run import outcome
from benchmarks.tasks import TASKS
from benchmarks.train import Run, warm
from hybrid_predict.rules.pace import Lagged, Pace, follow, worth

ADVANCES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Advances that are kept, in lengths of the drift; each doubles the one before."""

FILE = "pace-signals.jsonl"
Key = tuple[str, float, int, float, str]
FIELDS = ("task", "share", "seed", "advance", "setting")


class Kept:
    """Keeps one advance in place of :func:`hybrid_predict.rules.pace.follow`."""

    def __init__(self, advance: float) -> None:
        self._advance, self._worths = advance, list[float]()
        self._lagged, self._error, self._square = 0.0, 0.0, 0.0

    def follow(self, pace: Pace, lagged: Lagged, *, planned: bool) -> Pace:
        """Return the pace with the advance that is kept, once a window was measured."""
        new = follow(pace, lagged, planned=planned)
        if new.windows > pace.windows:
            self._lagged += lagged.late - lagged.early
            self._square += math.sqrt(lagged.forecast * lagged.drift)
            self._error += math.sqrt(lagged.chance)
            self._worths.append(worth(pace))
        return new._replace(advance=self._advance if new.windows else 0.0)

    @property
    def signals(self) -> dict[str, float]:
        """Persistence, its error and worth, pooled over all windows."""
        square = self._square or math.inf
        worths = self._worths or [1.0]
        return {
            "persistence": self._lagged / square,
            "error": self._error / square,
            "worth": sum(worths) / len(worths),
        }


def measure(key: Key) -> dict[str, Any]:
    """Make one run, and return its row."""
    task, share, seed, advance, setting = key
    kept = Kept(advance)
    warm(TASKS[task])
    with patch("hybrid_predict.groups.scores.follow", kept.follow):
        run = Run(
            study.cell(task, "auto", seed, study.best_rates()[task] * share, 1, setting),
            TASKS[task],
        )
        run.train()
    loss = TASKS[task].final_loss(run.model)
    skills = list(run.engine.ledger.skills.values()) if run.engine else []
    means = {
        name: sum(one[field] for one in skills) / max(1, len(skills))
        for name, field in (("skill", "mean"), ("fitted", "fitted"))
    }
    return {
        **dict(zip(FIELDS, key, strict=True)),
        **kept.signals, **means, **run.counts(),
        "loss": loss if run.finite else None,
    }  # fmt: skip


def key_of(row: Row) -> Key:
    """Return the key of a row."""
    return row["task"], row["share"], row["seed"], row["advance"], row["setting"]


def keys(seeds: int) -> Iterator[Key]:
    """Return all runs, seed by seed."""
    settings = (
        (study.RATES, study.SHARES, study.DEVELOPMENT),
        (study.STEADY, study.STEADY_SHARES, study.STEADY_TASKS),
    )
    for seed in range(seeds):
        for setting, shares, names in settings:
            for share, task, advance in product(shares, names, ADVANCES):
                yield task, share, seed, advance, setting


def tell(row: Row) -> None:
    """Print a line on a finished run."""
    print(*key_of(row), outcome(row), flush=True)


if __name__ == "__main__":
    study.main(FILE, key_of, keys, measure, tell)
