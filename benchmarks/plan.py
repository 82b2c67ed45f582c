"""The runs of a suite, and their learning rates, which runs over a grid decide."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from benchmarks.arms import ARMS, PLAIN, UNTUNED, Arm
from benchmarks.optimizers import Rates
from benchmarks.tasks import FRESH, TASKS, Task
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.updates import make_update

TUNING, TUNING_SEED = "tuning", 1000
"""Name of the setting and the seed of runs over a grid; comparisons use other seeds."""


@dataclass(frozen=True)
class Setting:
    """A way to choose the learning rate for all arms: ``tuned`` ones take the best of a grid."""

    title: str
    tuned: bool


SETTINGS: dict[str, Setting] = {
    "default-decay": Setting("default rate, decay", False),
    "tuned": Setting("tuned rate, decay", True),
}
"""Settings by name."""


@dataclass(frozen=True)
class Suite:
    """A named selection of cells; ``arms`` are by setting, and the plain arms are always added.

    ``measured`` tasks have their full steps timed; none named are all.
    """

    tasks: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]
    seeds: int
    tiny: bool = False
    measured: tuple[str, ...] = ()


_CONTROLLED = ("corrected", "predict-0", "hybrid", "predicted-only", "corrected-any-cost")
_WIDE = (*_CONTROLLED, "predict-.5")
_ALL = tuple(name for name in ARMS if name not in (*PLAIN, *UNTUNED))
_PEERS = ("muon", "normuon", "soap", "soap-muon")

SUITES: dict[str, Suite] = {
    "core": Suite(("gpt-0.2m", "cnn", "inr"), {"tuned": _ALL}, 5),
    "wide": Suite(("mlp", "lora", "pinn", "autoencoder"), {"tuned": (*_WIDE, *_PEERS)}, 5),
    "fresh": Suite(tuple(task.name for task in FRESH), {"tuned": (*_CONTROLLED, "muon")}, 5),
    "smoke": Suite(tuple(TASKS), {"default-decay": tuple(ARMS)}, 1, tiny=True),
    "gpu": Suite(
        ("gpt-30m",),
        {"default-decay": ("corrected", "hybrid", "hidden-x2", "muon")},
        1,
        measured=("gpt-30m", "gpt-124m"),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One training run.

    ``setting`` is :data:`TUNING` in a grid that settings share; ``steps`` is T, and ``recipe`` a
    digest of task and arm.
    """

    task: str
    setting: str
    arm: str
    seed: int
    rate: float
    hidden: float
    decay: bool
    steps: int
    recipe: str

    @property
    def rates(self) -> Rates:
        """Learning rates of the cell."""
        return Rates(self.rate, self.hidden)

    @property
    def budget(self) -> int:
        """Full steps, if all predicted steps stand."""
        return ARMS[self.arm].full_steps(self.steps)


Row = Mapping[str, Any]
"""The fields of a finished cell and its results."""


class Plan:
    """The cells of a suite."""

    def __init__(self, suite: Suite) -> None:
        _check(suite)
        self.suite = suite
        self.tasks: dict[str, Task] = {name: self.task(name) for name in suite.tasks}
        self._digests: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        """Return the number of cells that can be run, with those of grids."""
        tuned = any(SETTINGS[setting].tuned for setting in self.suite.arms)
        rates = sum(len(task.recipe.rates) for task in self.tasks.values())
        count = rates * len(PLAIN) if tuned else 0
        for setting in self.suite.arms:
            for arm in self.arms(setting):
                tried = len(ARMS[arm].factors)
                runs = self.suite.seeds + (tried if tried > 1 else 0)
                count += len(self.tasks) * runs
        return count

    def task(self, name: str) -> Task:
        """Return a task, shortened for a tiny suite."""
        return TASKS[name].tiny() if self.suite.tiny else TASKS[name]

    def arms(self, setting: str) -> tuple[str, ...]:
        """Return the names of the arms of a setting."""
        return (*PLAIN, *(name for name in self.suite.arms[setting] if name not in PLAIN))

    def ready(self, done: Mapping[Cell, Row]) -> list[Cell]:
        """Return the cells that can be run now; more are ready once these are finished."""
        cells = dict.fromkeys(self._cells(done))
        return [cell for cell in cells if cell not in done]

    def chosen(self, done: Mapping[Cell, Row]) -> dict[Cell, Row]:
        """Return the finished cells of this plan."""
        cells = dict.fromkeys(self._cells(done))
        return {cell: done[cell] for cell in cells if cell in done}

    def _cells(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        places = list(product(self.tasks, self.suite.arms))
        for task, setting in places:
            for arm in PLAIN:
                yield from self._grid(task, setting, arm)
        for task, setting in places:
            for arm in self.arms(setting):
                if len(ARMS[arm].factors) > 1:
                    yield from self._tried(task, setting, arm, done)
        compared = [
            (task, setting, arm, rates)
            for task, setting in places
            for arm in self.arms(setting)
            if (rates := self.rates(task, setting, arm, done)) is not None
        ]
        for seed in range(self.suite.seeds):
            for task, setting, arm, rates in compared:
                yield self._cell(task, setting, arm, seed, rates)

    def _grid(self, task: str, setting: str, arm: str) -> list[Cell]:
        """Return the cells of a plain arm over the grid; empty for a setting without a grid."""
        rates = self.tasks[task].recipe.rates if SETTINGS[setting].tuned else ()
        return [self._cell(task, TUNING, arm, TUNING_SEED, Rates(rate)) for rate in rates]

    def _cell(self, task: str, setting: str, arm: str, seed: int, rates: Rates) -> Cell:
        steps = self.tasks[task].steps
        if (task, arm) not in self._digests:
            self._digests[task, arm] = recipe_digest(self.tasks[task], ARMS[arm])
        digest = self._digests[task, arm]
        return Cell(task, setting, arm, seed, rates.base, rates.hidden, True, steps, digest)

    def _tried(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> list[Cell]:
        """Return the cells of an arm's own grid around the setting's rates, once they are known."""
        rates, chosen = self._base_rates(task, setting, arm, done), ARMS[arm]
        if rates is None:
            return []
        multiples = [rates.times(chosen.tunes, factor) for factor in chosen.factors]
        return [self._cell(task, setting, arm, TUNING_SEED, r) for r in multiples]

    def _base_rates(
        self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]
    ) -> Rates | None:
        """Return the rates that are best for plain training, or None if they are not known yet.

        An arm with the plug-in takes those of plain training for T full steps; an arm without it
        those of plain training for as many full steps as its own.
        """
        tuned = arm if arm in PLAIN else "short" if ARMS[arm].plugin is None else "plain"
        grid = self._grid(task, setting, tuned)
        return best(grid, done) if grid else Rates(self.tasks[task].recipe.learning_rate)

    def rates(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> Rates | None:
        """Return the rates of an arm; None until the runs that decide them are finished."""
        chosen = ARMS[arm]
        if len(chosen.factors) > 1:
            tried = self._tried(task, setting, arm, done)
            return best(tried, done) if tried else None
        rates = self._base_rates(task, setting, arm, done)
        return rates and rates.times(chosen.tunes, chosen.factors[0])


def _check(suite: Suite) -> None:
    named: list[tuple[str, Collection[str], Collection[str]]] = [
        ("tasks", suite.tasks, TASKS),
        ("settings", suite.arms, SETTINGS),
        *(("arms", arms, ARMS) for arms in suite.arms.values()),
    ]
    for argument, names, known in named:
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(argument, f"names out of {', '.join(known)}", unknown[0])
        if len(set(names)) < len(names):
            raise ConfigError(argument, "every name once", list(names))
    if suite.seeds < 1:
        raise ConfigError("seeds", "an integer, at least 1", suite.seeds)


def best(cells: Sequence[Cell], done: Mapping[Cell, Row]) -> Rates | None:
    """Return the rates of the cell with the lowest loss; None until all cells are finished."""
    if any(cell not in done for cell in cells):
        return None
    return min(cells, key=lambda cell: number(done[cell]["loss"])).rates


def number(loss: float | None) -> float:
    """Return a loss of a results file, with infinity for None, a diverged run."""
    return math.inf if loss is None else loss


def recipe_digest(task: Task, arm: Arm) -> str:
    """Return 12 hexadecimal digits over task and arm, without learning rates."""
    described = task.to_dict()
    for name in ("learning_rate", "rates"):  # a cell names the rate that it uses
        described["recipe"].pop(name)
    plain: dict[str, Any] = {"task": described, "arm": arm.describe()}
    if (config := arm.config(task.steps)) is not None:
        updates = {kind: make_update(u) for kind, u in config.updates.items()}
        predictors = {kind: make_predictor(p) for kind, p in config.chosen_predictors.items()}
        plain["plugin"] = [config.to_dict(), repr(updates), repr(predictors)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def as_cell(row: Row) -> Cell:
    """Return the cell of a row."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})


def select(
    suite: Suite,
    tasks: Iterable[str] | None = None,
    settings: Iterable[str] | None = None,
    arms: Iterable[str] | None = None,
    seeds: int | None = None,
) -> Suite:
    """Return a suite with other tasks, settings, arms or seeds; None leaves those of the suite.

    A setting that the suite lacks gets all arms.
    """
    chosen = {name: suite.arms.get(name, _ALL) for name in settings or suite.arms}
    if arms is not None:
        chosen = dict.fromkeys(chosen, tuple(arms))
    return replace(
        suite,
        tasks=tuple(tasks) if tasks is not None else suite.tasks,
        arms=chosen,
        seeds=suite.seeds if seeds is None else seeds,
        measured=() if tasks is not None else suite.measured,
    )


def to_row(cell: Cell, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell with its results as plain data."""
    return {**asdict(cell), **results}
