"""Models of several widths and lengths, whose rates a search over trials decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.arms import ARMS
from benchmarks.digests import recipe_digest
from benchmarks.optimizers import Rates
from benchmarks.plan import TUNING, TUNING_SEED, Cell, Row, Selection, number
from benchmarks.run import CellPlan
from benchmarks.tasks.gpt import GPT_SMALL, ByteGPTTask

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

TRIALS = 5
"""Most rates that are tried: three, and up to two beyond an end that is the best so far."""


def sized(width: int) -> ByteGPTTask:
    """A byte GPT of three layers whose heads are 32 wide."""
    return replace(
        GPT_SMALL,
        name=f"gpt-width-{width}",
        title=f"byte GPT, width {width}",
        width=width,
        heads=max(1, width // 32),
    )


class Missing(Exception):
    """A trial that decides a rate is not finished."""


class ScalePlan(CellPlan):
    """The runs of cases, each after the trials that decide its rates."""

    def __init__(
        self,
        chosen: Selection,
        cases: tuple[Case, ...] = CASES,
        task: Callable[[int], ByteGPTTask] = sized,
    ) -> None:
        self._chosen = chosen
        self._cases = [replace(case, seeds=chosen.seeds or case.seeds) for case in cases]
        self._sized = task
        self._digests: dict[tuple[int, str, int], str] = {}

    def keys(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        """Yield the trials that are known, and the runs whose trials are finished."""
        for case in self._cases:
            if self._chosen.tasks and self._sized(case.width).name not in self._chosen.tasks:
                continue
            wanted = [(PLAIN, steps) for steps in case.lengths]
            wanted += [
                (arm, case.steps)
                for arm in case.arms
                if self._chosen.arms is None or arm in self._chosen.arms
            ]
            rates: dict[tuple[str, int], Rates] = {}
            for arm, steps in wanted:
                trials: list[Cell] = []
                with suppress(Missing):
                    rates[arm, steps] = self._rates(case, arm, steps, done, trials)
                yield from trials
            for seed in range(case.seeds):
                for (arm, steps), found in rates.items():
                    yield self._cell(case.width, arm, steps, seed, found)

    def task(self, cell: Cell) -> ByteGPTTask:
        """Return the task of a cell."""
        return self._task(int(cell.task.rpartition("-")[2]), cell.steps)

    def work(self, cell: Cell) -> Row:
        """Train a cell; its row also has the size of the model and of a batch."""
        task = self.task(cell)
        parameters = sum(p.numel() for p in task.model(0).parameters())
        tokens = task.batch_size * task.context
        sizes = {"width": task.width, "parameters": parameters, "tokens": tokens}
        return {**super().work(cell), **sizes}

    def _rates(
        self, case: Case, arm: str, steps: int, done: Mapping[Cell, Row], trials: list[Cell]
    ) -> Rates:
        """Return the rates of an arm at T = ``steps``: the best at the next shorter tuned length.

        The trials that decide them are added to ``trials``.

        Raises:
            Missing: If a trial is not finished.
        """

        def tuned(arm: str, lengths: list[int]) -> Rates:
            """Return the best rates at the last of some lengths, searched from shorter ones."""
            tunes = ARMS[arm].tunes
            plain = Rates(MIDDLE / case.width) if arm == PLAIN else tuned(PLAIN, lengths)
            if len(lengths) > 1:
                before = tuned(arm, lengths[:-1])
                middle = replace(plain, **{tunes: getattr(before, tunes)})
            else:
                middle = plain.times(tunes, HIDDEN if tunes == "hidden" else 1.0)
            length = round(lengths[-1] / ARMS[arm].share)

            def losses(factors: list[float]) -> list[float]:
                rates = [middle.times(tunes, factor) for factor in factors]
                cells = [
                    self._cell(case.width, arm, length, TUNING_SEED, each, TUNING) for each in rates
                ]
                trials.extend(cells)
                if any(cell not in done for cell in cells):
                    raise Missing
                return [number(done[cell]["loss"]) for cell in cells]

            return middle.times(tunes, least(losses))

        budget = ARMS[arm].full_steps(steps)
        known = [length for length in case.tuned if length <= budget]
        return tuned(TUNED_AS.get(arm, arm), known or list(case.tuned[:1]))

    def _task(self, width: int, steps: int) -> ByteGPTTask:
        return replace(self._sized(width), steps=steps)

    def _cell(
        self, width: int, arm: str, steps: int, seed: int, rates: Rates, setting: str = "tuned"
    ) -> Cell:
        task = self._task(width, steps)
        if (width, arm, steps) not in self._digests:
            self._digests[width, arm, steps] = recipe_digest(task, ARMS[arm])
        digest = self._digests[width, arm, steps]
        return Cell(task.name, setting, arm, seed, rates.base, rates.hidden, True, steps, digest)


def least(losses: Callable[[list[float]], list[float]]) -> float:
    """Return the factor of least loss among halves and doubles of 1.

    The grid moves while its best factor is at an end.
    """
    factors = [0.5, 1.0, 2.0]
    while True:
        found = losses(factors)
        best = found.index(min(found))
        if 0 < best < len(factors) - 1 or len(factors) == TRIALS:
            return factors[best]
        factors = [factors[0] / 2, *factors] if best == 0 else [*factors, factors[-1] * 2]
