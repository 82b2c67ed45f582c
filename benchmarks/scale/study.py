"""Tunes rates, trains models of several widths and lengths, and times their full steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.optimizers import Build, Rates, muon, normuon
from benchmarks.plan import TUNING, TUNING_SEED, Cell, number, recipe_digest
from benchmarks.run import trained
from benchmarks.step_cost import WAYS, TaskLoop, times
from benchmarks.tasks.gpt import GPT_SMALL, ByteGPTTask
from hybrid_predict.runs.rows import Row, Rows

PLAIN = "plain"
"""The arm whose runs of several lengths make the curve that others are read off."""

COMPARED = ("corrected", "hybrid", "muon", "normuon")
UNBOUNDED = "corrected-any-cost"
"""Corrected updates without the limit on their cost, which binds on small batches."""

TUNED_AS = {"hybrid": "corrected", UNBOUNDED: "corrected"}
"""Arms that get the rate of another one."""


@dataclass(frozen=True)
class Case:
    """One model and one length T.

    ``tuned`` are full steps of the runs that decide the rates, ascending.
    """

    width: int
    steps: int
    seeds: int
    arms: tuple[str, ...] = COMPARED
    tuned: tuple[int, ...] = (400, 1200, 4800)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Full steps of the plain runs: T / 1.5, T and 2 T."""
        return (ARMS["short"].full_steps(self.steps), self.steps, 2 * self.steps)


CASES = (
    Case(64, 600, 2, (*COMPARED, UNBOUNDED)),
    Case(32, 600, 2, (*COMPARED, UNBOUNDED)),
    Case(64, 2400, 1, (*COMPARED, UNBOUNDED)),
    Case(128, 600, 1, (*COMPARED, UNBOUNDED)),
    Case(64, 2400, 2),
    Case(64, 9600, 1, (*COMPARED, UNBOUNDED)),
    Case(256, 600, 1, ("corrected", UNBOUNDED), (400,)),
    Case(128, 600, 2, (*COMPARED, UNBOUNDED)),
    Case(32, 1200, 2),
    Case(128, 1200, 2),
)
"""The most telling ones first; a case that stands twice gets its second seed later.

One seed at width 256, whose rates are tuned at one length: a single trial takes a minute there.
"""

MIDDLE = 0.256
"""Over the width: the middle one of the first rates that plain training tries."""

HIDDEN = 4.0
"""The middle one of the first multiples of the hidden matrices' rate that peers try."""


def sized(width: int, rows: int = 8) -> ByteGPTTask:
    """A byte GPT of three layers whose heads are 32 wide, on batches of ``rows`` windows."""
    return replace(
        GPT_SMALL, name=f"gpt-width-{width}", title=f"byte GPT, width {width}", width=width,
        heads=max(1, width // 32), batch_size=rows,
    )  # fmt: skip


TRIALS = 5
"""Most rates that are tried: three, and up to two beyond an end that is the best so far."""


class Study:
    """The runs of cases; ``on_row`` is called with each new one."""

    def __init__(
        self,
        store: Rows[Cell],
        on_row: Callable[[Row], object] = lambda row: None,
        task: Callable[[int], ByteGPTTask] = sized,
    ) -> None:
        self._store, self._on_row = store, on_row
        self._task = lru_cache(task)

    def run(self, case: Case) -> None:
        """Make the runs of a case that are not done yet; first those that decide its rates."""
        wanted = [(PLAIN, steps) for steps in case.lengths]
        wanted += [(arm, case.steps) for arm in case.arms]
        rates = {(arm, steps): self.rates(case, arm, steps) for arm, steps in wanted}
        for seed in range(case.seeds):
            for (arm, steps), chosen in rates.items():
                self._result(self._cell(case.width, arm, steps, seed, chosen))

    def rates(self, case: Case, arm: str, steps: int) -> Rates:
        """The rates of an arm at T = ``steps``: the best at the next shorter tuned length."""
        budget = ARMS[arm].full_steps(steps)
        known = [length for length in case.tuned if length <= budget]
        return self._tuned(case.width, TUNED_AS.get(arm, arm), known or list(case.tuned[:1]))

    def _tuned(self, width: int, arm: str, lengths: list[int]) -> Rates:
        """The best rates of an arm at the last of some lengths, searched from shorter ones."""
        tunes = ARMS[arm].tunes
        plain = Rates(MIDDLE / width) if arm == PLAIN else self._tuned(width, PLAIN, lengths)
        if len(lengths) > 1:
            before = self._tuned(width, arm, lengths[:-1])
            middle = replace(plain, **{tunes: getattr(before, tunes)})
        else:
            middle = plain.times(tunes, HIDDEN if tunes == "hidden" else 1.0)
        steps = round(lengths[-1] / ARMS[arm].share)

        def loss(factor: float) -> float:
            rates = middle.times(tunes, factor)
            cell = self._cell(width, arm, steps, TUNING_SEED, rates, TUNING)
            return number(self._result(cell)["loss"])

        return middle.times(tunes, _least(loss))

    def _cell(
        self, width: int, arm: str, steps: int, seed: int, rates: Rates, setting: str = "tuned"
    ) -> Cell:
        task = replace(self._task(width), steps=steps)
        digest = recipe_digest(task, ARMS[arm])
        return Cell(
            task.name, setting, arm, seed, rates.base, rates.hidden, True, steps, digest
        )  # fmt: skip

    def _result(self, cell: Cell) -> Row:
        """A cell's row, after training if there is none."""
        if cell not in self._store.done:
            task = replace(self._task(int(cell.task.rpartition("-")[2])), steps=cell.steps)
            row = {**trained(cell, task), **dimensions(task)}
            self._store.add(row)
            self._on_row(row)
        return self._store.done[cell]


def dimensions(task: ByteGPTTask) -> dict[str, Any]:
    """The size of a task's model and of its batches."""
    return {
        "width": task.width,
        "parameters": sum(p.numel() for p in task.model(0).parameters()),
        "tokens": task.batch_size * task.context,
    }


def _least(loss: Callable[[float], float]) -> float:
    """The factor of least loss among halves and doubles of 1, the grid's ends moved if need be."""
    factors = [0.5, 1.0, 2.0]
    while True:
        losses = [loss(factor) for factor in factors]
        best = losses.index(min(losses))
        if 0 < best < len(factors) - 1 or len(factors) == TRIALS:
            return factors[best]
        factors = [factors[0] / 2, *factors] if best == 0 else [*factors, factors[-1] * 2]


LOOPS: dict[str, tuple[dict[str, Any] | None, Build | None]] = {
    "plain": (None, None),
    "corrected": (WAYS["corrected"], None),
    "hybrid": (WAYS["both"], None),
    "corrected-any-cost": ({"speedup": 1, "max_overhead": 1e9}, None),
    "muon": (None, muon),
    "normuon": (None, normuon),
}
"""What is timed: arguments of `HybridConfig`, and the optimizer."""

WIDTHS = sorted({case.width for case in CASES})
ROWS = (4, 8, 16, 32)


def measure(
    widths: Sequence[int] = tuple(WIDTHS),
    rows: Sequence[int] = ROWS,
    blocks: int = 4,
) -> Iterator[dict[str, Any]]:
    """Yield one row per width and rows of a batch; ``counted`` are operations of correcting."""
    for width in widths:
        for count in rows:
            yield _timed(sized(width, count), blocks, max(2, 512 // width))


def _timed(task: ByteGPTTask, blocks: int, length: int) -> dict[str, Any]:
    loops = {name: TaskLoop(task, options, build) for name, (options, build) in LOOPS.items()}
    row = {"rows": task.batch_size, **dimensions(task), **times(loops, blocks, length)}
    for name, loop in loops.items():
        if name != "plain":
            row[name]["counted"] = loop.engine and loop.engine.ledger.correction_share
        loop.close()
    return row
