"""Plans of training runs: lines of cells, and the trials that decide the rates of some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from time import perf_counter

from benchmarks.arms import ARMS, PLAIN, code_digest, recipe_digest
from benchmarks.optimizers import Rates
from benchmarks.plan import TUNING, TUNING_SEED, Cell, Plan, Row, Selection, check_chosen, number
from benchmarks.tasks import Task
from benchmarks.train import train


@dataclass(frozen=True)
class Line:
    """Runs that differ in their seed alone; without ``rates`` the best of a grid are taken.

    ``steps`` is T of the runs, ``trial`` that of the grid's; 0 is that of the task.
    """

    task: Task
    setting: str
    arm: str
    seeds: int
    rates: Rates | None = None
    decay: bool = True
    steps: int = 0
    trial: int = 0


class CellPlan(Plan[Cell]):
    """The cells of lines, seed by seed, after the trials that decide their rates.

    Plain arms are tuned at their own number of full steps. Arms with the plug-in get the rates that
    are best for plain training of T full steps, other arms those for T / 1.5. Around these some
    arms try factors of their own. A selection of arms always keeps the plain ones, with which all
    others are compared.
    """

    def __init__(self, lines: Iterable[Line], chosen: Selection | None = None) -> None:
        self._all = list(lines)
        self.tasks: dict[str, Task] = {line.task.name: line.task for line in self._all}
        chosen = chosen or Selection()
        check_chosen("tasks", chosen.tasks, self.tasks)
        check_chosen("settings", chosen.settings, (line.setting for line in self._all))
        check_chosen("arms", chosen.arms, (line.arm for line in self._all))
        self.lines = [
            replace(line, seeds=chosen.seeds or line.seeds)
            for line in self._all
            if chosen.tasks is None or line.task.name in chosen.tasks
            if chosen.settings is None or line.setting in chosen.settings
            if chosen.arms is None or line.arm in (*chosen.arms, *PLAIN)
        ]

    def keys(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        for line in self.lines:
            yield from self._grid(line)
        for line in self.lines:
            yield from self._tried(line, done)
        for seed in range(max((line.seeds for line in self.lines), default=0)):
            for line in self.lines:
                if seed < line.seeds and (rates := self.rates(line, done)) is not None:
                    yield _cell(line, seed, rates, line.steps)

    def rates(self, line: Line, done: Mapping[Cell, Row]) -> Rates | None:
        """Return the rates of a line; None until the runs that decide them are finished."""
        arm = ARMS[line.arm]
        base = line.rates or best(self._grid(line), done)
        if base is None:
            return None
        if len(arm.factors) == 1:
            return base.times(arm.tunes, arm.factors[0])
        return base if line.rates else best(self._tried(line, done), done)

    def _grid(self, line: Line) -> list[Cell]:
        """Return the trials of the plain arm that a line takes its rates from; none if it has."""
        if line.rates is not None:
            return []
        plain = line.arm
        if plain not in PLAIN:
            plain = "short" if ARMS[line.arm].plugin is None else "plain"
        tuned = replace(line, arm=plain, setting=TUNING)
        return [_cell(tuned, TUNING_SEED, Rates(r), line.trial) for r in line.task.recipe.rates]

    def _tried(self, line: Line, done: Mapping[Cell, Row]) -> list[Cell]:
        """Return the trials of an arm's own factors, once the rates of its grid are known."""
        arm = ARMS[line.arm]
        base = best(self._grid(line), done)
        if base is None or len(arm.factors) == 1:
            return []
        tried = [base.times(arm.tunes, factor) for factor in arm.factors]
        return [_cell(line, TUNING_SEED, rates, line.trial) for rates in tried]

    def key(self, row: Row) -> Cell:
        return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})

    def work(self, cell: Cell) -> Row:
        """Train a cell; ``elapsed`` are seconds of the clock, with data and evaluations."""
        started = perf_counter()
        results = train(cell, self.tasks[cell.task])
        elapsed = perf_counter() - started
        code = code_digest(plugin=ARMS[cell.arm].plugin is not None)
        return {**asdict(cell), **results, "elapsed": elapsed, "code": code}

    def holds(self, row: Row) -> bool:
        """Return whether a run has a recipe of the study, and no plug-in or its present code."""
        arm = ARMS.get(row["arm"])
        if arm is None:
            return False
        tasks = {line.task for line in self._all if line.task.name == row["task"]}
        recipes = {_recipe(task, row["arm"], row["steps"]) for task in tasks}
        current = arm.plugin is None or row["code"] == code_digest(plugin=True)
        return current and row["recipe"] in recipes


def _cell(line: Line, seed: int, rates: Rates, steps: int) -> Cell:
    task = line.task
    steps = steps or task.steps
    recipe = _recipe(task, line.arm, steps)
    return Cell(task.name, line.setting, line.arm, seed, *rates, line.decay, steps, recipe)


@cache
def _recipe(task: Task, arm: str, steps: int) -> str:
    return recipe_digest(replace(task, steps=steps), ARMS[arm])


def best(cells: list[Cell], done: Mapping[Cell, Row]) -> Rates | None:
    """Return the rates of the cell with the lowest loss; None until all cells are finished."""
    if not cells or any(cell not in done for cell in cells):
        return None
    return min(cells, key=lambda cell: number(done[cell]["loss"])).rates
