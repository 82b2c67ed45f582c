"""What becomes of the speedup when models grow and runs get longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from benchmarks.arms import ARMS, PLAIN
from benchmarks.cells import Line
from benchmarks.gains import Figures, Summary
from benchmarks.plan import TUNING_SEED, Row
from benchmarks.tasks.language import GPT_SMALL, ByteGPTTask
from benchmarks.views import NONE, count, rate_text, states_text, steps_text, view

COMPARED = ("corrected", "hybrid", "muon", "normuon", "corrected-any-cost")
"""The limit on the cost of corrected updates binds on small batches."""

FACTORS = (0.5, 1.0, 2.0, 4.0)  # rates that plain training tries, times .256 / width


class Case(NamedTuple):
    """A model and a length T; ``trial`` full steps have the runs that decide the rates."""

    width: int
    steps: int
    seeds: int
    trial: int
    layers: int = 3
    context: int = 64
    batch_size: int = 8

    def task(self) -> ByteGPTTask:
        """Return a byte GPT whose heads are 32 wide, or 64 in the large models."""
        rates = tuple(0.256 / self.width * factor for factor in FACTORS)
        return replace(
            GPT_SMALL,
            name=f"gpt-width-{self.width}",
            title=f"byte GPT, width {self.width}",
            width=self.width,
            heads=max(1, self.width // (32 if self.layers == 3 else 64)),
            layers=self.layers,
            context=self.context,
            batch_size=self.batch_size,
            recipe=replace(GPT_SMALL.recipe, rates=rates),
        )


CASES = (
    Case(32, 600, 2, 600),
    Case(32, 1200, 2, 600),
    Case(64, 600, 2, 600),
    Case(64, 2400, 2, 2400),
    Case(64, 9600, 1, 2400),
    Case(128, 600, 2, 600),
    Case(128, 1200, 2, 600),
    Case(256, 600, 1, 600),
    Case(320, 450, 1, 300, 8, 256, 32),
    Case(512, 450, 1, 300, 10, 256, 32),
)
"""Models of .06 M to 32 M parameters."""


def lines(cases: Iterable[Case] = CASES) -> Iterator[Line]:
    """Yield the runs of all cases; plain ones have T / 1.5, T and 2 T full steps."""
    for case in cases:
        task = case.task()
        for arm in ("short", "plain", "plain-double", *COMPARED):
            yield Line(task, "tuned", arm, case.seeds, steps=case.steps, trial=case.trial)


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    found = Summary(rows).in_order()
    found.sort(key=lambda f: (f.first["parameters"], f.place.steps))
    return {
        "scale source": partial(source, rows),
        "scale plain": partial(plain_table, found),
        "scale speedups": partial(speedups_table, found),
    }


def source(rows: Sequence[Row]) -> str:
    """Tell how many runs there are."""
    trials = sum(row["seed"] == TUNING_SEED for row in rows)
    return (
        f"{len(rows) - trials} runs, and {count(trials, 'trial')} of rates with seed {TUNING_SEED},"
        f" one thread each. So few seeds make every difference a hint.{states_text(rows)}"
    )


def plain_table(found: Iterable[Figures]) -> str:
    """List the plain runs, a row per width and length."""
    return view(
        {
            "width": _width(f),
            "parameters": f"{f.first['parameters']:,}",
            "full steps": steps_text(f),
            "bytes per parameter": f"{tokens(f):.2g}",
            "rate": rate_text(f),
            "final loss, mean": _loss(f),
            "seeds": str(len(f.rows)),
        }
        for f in found
        if f.place.arm in PLAIN
    )


def speedups_table(found: Iterable[Figures]) -> str:
    """List the arms beside plain training, a row per width, length and arm."""
    return view(
        {
            "width": _width(f),
            "T": f"{f.place.steps:,}",
            "arm": ARMS[f.place.arm].title,
            "full steps": steps_text(f),
            "predicted steps": steps_text(f, "predicted_steps"),
            "bytes per parameter": f"{tokens(f):.2g}",
            "rate (x hidden)": rate_text(f),
            "final loss, mean": _loss(f),
            "speedup at equal quality": str(f.speedup or NONE),
            "seeds": str(len(f.rows)),
        }
        for f in found
        if f.place.arm not in PLAIN
    )


def _width(figures: Figures) -> str:
    return figures.place.task.rpartition("-")[2]


def tokens(figures: Figures) -> float:
    """Return the bytes that the full steps of runs read, per parameter."""
    sizes = {str(case.width): case.batch_size * case.context for case in CASES}
    return figures.full_steps * sizes[_width(figures)] / float(figures.first["parameters"])


def _loss(figures: Figures) -> str:
    loss = figures.mean("loss")
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"
