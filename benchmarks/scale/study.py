"""Tunes rates and trains the cases, one run after the other; finished ones are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from benchmarks.arms import ARMS
from benchmarks.optimizers import Rates
from benchmarks.plan import TUNING, TUNING_SEED, Cell, number, recipe_digest, to_row
from benchmarks.run import code_digest
from benchmarks.scale.sizes import HIDDEN, MIDDLE, PLAIN, TUNED_AS, Case, sized
from benchmarks.tasks.gpt import ByteGPTTask
from benchmarks.train import train
from hybrid_predict.runs.rows import Row, Rows

TRIALS = 5
"""Most rates that are tried: three, and up to two beyond an end that is the best so far."""


class Study:
    """The runs of cases.

    Args:
        store: Finished runs; new ones are added.
        on_row: Is told of every run that was made.
        task: Makes the task of a width.
    """

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
            row = to_row(cell, {**train(cell, task), **told(task), "code": code_digest(cell.arm)})
            self._store.add(row)
            self._on_row(row)
        return self._store.done[cell]


def told(task: ByteGPTTask) -> dict[str, Any]:
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
