"""Which runs a suite consists of, and which rates they get once their grids are done."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.arms import ARMS, PLAIN, RUNNABLE, Arm
from benchmarks.optimizers import Rates
from benchmarks.tasks import FRESH, TASKS, Task
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.runs.evidence import speedup
from hybrid_predict.updates import make_update

TUNING, TUNING_SEED = "tuning", 1000
"""Name in place of a setting, and the one seed, of grids; no comparison uses that seed."""

MULTIPLIERS = (1.0, 2.0, 3.0, 4.0)
"""What ``tuned-by-kind`` tries for the hidden matrices, times every rate of the grid."""


@dataclass(frozen=True)
class Setting:
    """How the learning rate is chosen, for all arms alike.

    Args:
        title: What readers call it.
        decay: The schedule of the task's recipe; otherwise the rate is constant.
        multipliers: Of the hidden matrices' rate in the grid; empty for the tutorial's rate.
    """

    title: str
    decay: bool
    multipliers: tuple[float, ...]


SETTINGS: dict[str, Setting] = {
    "default-constant": Setting("default rate, constant", False, ()),
    "default-decay": Setting("default rate, decay", True, ()),
    "tuned": Setting("tuned rate, decay", True, (1.0,)),
    "tuned-by-kind": Setting("rates tuned by kind, decay", True, MULTIPLIERS),
}
"""The settings by name, from what users have to what a thorough sweep would give them."""


@dataclass(frozen=True)
class Suite:
    """A named selection of cells.

    Args:
        tasks: Names of tasks.
        arms: Names of arms by name of setting; the plain arms, without which nothing can be
            compared, are added.
        seeds: Number of paired seeds.
        tiny: Train for a few steps only.
        measured: Tasks whose full steps are timed with and without the plug-in; empty for all.
    """

    tasks: tuple[str, ...]
    arms: Mapping[str, tuple[str, ...]]
    seeds: int
    tiny: bool = False
    measured: tuple[str, ...] = ()


_CORE = ("corrected", "hybrid", "landed")
_OTHERS = dict.fromkeys(("default-constant", "default-decay", "tuned-by-kind"), _CORE)
_ALL = tuple(name for name in ARMS if name not in PLAIN)
_PLUGIN = tuple(name for name in _ALL if ARMS[name].plugin is not None)
_PEERS = ("muon", "normuon", "soap", "soap-muon", "kron", "ademamix")
_ON_CPU = tuple(name for name, task in TASKS.items() if not task.needs_cuda)

SUITES: dict[str, Suite] = {
    "core": Suite(("gpt-0.2m", "cnn", "inr"), {**_OTHERS, "tuned": _ALL}, 5),
    "wide": Suite(("mlp", "lora", "pinn", "autoencoder"), {"tuned": (*_PLUGIN, *_PEERS)}, 5),
    "fresh": Suite(
        tuple(task.name for task in FRESH),
        {"tuned": ("corrected", "corrected-any-cost", "hybrid", "muon")},
        5,
    ),
    "full": Suite(_ON_CPU, {**_OTHERS, "tuned": _ALL}, 5),
    "smoke": Suite(tuple(TASKS), {"default-decay": RUNNABLE}, 1, tiny=True),
    "gpu": Suite(
        ("gpt-30m",),
        {"default-decay": ("corrected", "hybrid", "hidden-x2", "muon")},
        1,
        measured=("gpt-30m", "gpt-124m"),
    ),
}
"""The suites by name."""


@dataclass(frozen=True)
class Cell:
    """One training run.

    Args:
        task: Name of the task.
        setting: Name of the setting; :data:`TUNING` in a grid that settings share.
        arm: Name of the arm.
        seed: Decides initial weights and batches.
        rate: Learning rate.
        hidden: Multiplies it for the hidden matrices.
        decay: Whether the learning rate follows a schedule.
        steps: T of the task.
        recipe: Digest of everything else that the result depends on.
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
        """Its learning rates."""
        return Rates(self.rate, self.hidden)

    @property
    def budget(self) -> int:
        """Full steps, if all predicted steps stand."""
        return ARMS[self.arm].full_steps(self.steps)


Row = Mapping[str, Any]
"""What is known of a finished cell: its fields and its results."""


class Plan:
    """The cells of a suite.

    Args:
        suite: What is asked for.

    Raises:
        ConfigError: If a name is unknown or ``seeds`` is below 1.
    """

    def __init__(self, suite: Suite) -> None:
        _check(suite)
        self.suite = suite
        self.tasks: dict[str, Task] = {name: self.task(name) for name in suite.tasks}
        self._digests: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        """Number of cells that can be run, grids included."""
        widest = max(len(SETTINGS[setting].multipliers) for setting in self.suite.arms)
        rates = sum(len(task.recipe.rates) for task in self.tasks.values())
        count = rates * widest * len(PLAIN)
        for setting in self.suite.arms:
            for arm in self.arms(setting):
                tried = len(ARMS[arm].factors)
                runs = self.suite.seeds + (tried if tried > 1 else 0)
                count += 0 if ARMS[arm].kept else len(self.tasks) * runs
        return count

    def task(self, name: str) -> Task:
        """A task in the size of the suite."""
        return TASKS[name].tiny() if self.suite.tiny else TASKS[name]

    def arms(self, setting: str) -> tuple[str, ...]:
        """Names of a setting's arms."""
        return (*PLAIN, *(name for name in self.suite.arms[setting] if name not in PLAIN))

    def ready(self, done: Mapping[Cell, Row]) -> list[Cell]:
        """Cells that can be run now; more become ready when these are done."""
        cells = dict.fromkeys(self._cells(done))
        return [cell for cell in cells if cell not in done]

    def chosen(self, done: Mapping[Cell, Row]) -> dict[Cell, Row]:
        """The finished cells that belong to this plan, those of kept arms included."""
        cells = dict.fromkeys((*self._cells(done), *filter(self._is_kept, done)))
        return {cell: done[cell] for cell in cells if cell in done}

    def finished(self, done: Mapping[Cell, Row]) -> int:
        """How many of the cells that can be run are done."""
        return sum(not ARMS[cell.arm].kept for cell in self.chosen(done))

    def _is_kept(self, cell: Cell) -> bool:
        """Whether a finished cell of an arm that cannot be run belongs to this plan."""
        return (
            ARMS[cell.arm].kept
            and cell.arm in self.suite.arms.get(cell.setting, ())
            and cell.task in self.tasks
            and cell.steps == self.tasks[cell.task].steps
            and cell.seed < self.suite.seeds
        )

    def _cells(self, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        for task in self.tasks:
            for setting in self.suite.arms:
                for arm in PLAIN:
                    yield from self._grid(task, setting, arm)
        for task in self.tasks:
            for setting in self.suite.arms:
                yield from self._factors(task, setting, done)
        compared = [
            (task, setting, arm, rates)
            for task in self.tasks
            for setting in self.suite.arms
            for arm in self.arms(setting)
            if not ARMS[arm].kept
            if (rates := self.rates(task, setting, arm, done)) is not None
        ]
        for seed in range(self.suite.seeds):
            for task, setting, arm, rates in compared:
                yield self._cell(task, setting, arm, seed, rates, SETTINGS[setting].decay)

    def _grid(self, task: str, setting: str, arm: str) -> list[Cell]:
        """A plain arm over the grid of rates, at its own budget; none for the tutorial's rate."""
        return [
            self._cell(task, TUNING, arm, TUNING_SEED, Rates(rate, multiplier), True)
            for multiplier in SETTINGS[setting].multipliers
            for rate in self.tasks[task].recipe.rates
        ]

    def _factors(self, task: str, setting: str, done: Mapping[Cell, Row]) -> Iterator[Cell]:
        for arm in self.arms(setting):
            if len(ARMS[arm].factors) > 1:
                yield from self._tried(task, setting, arm, done)

    def _cell(
        self, task: str, setting: str, arm: str, seed: int, rates: Rates, decay: bool
    ) -> Cell:
        steps = self.tasks[task].steps
        if (task, arm) not in self._digests:
            self._digests[task, arm] = recipe_digest(self.tasks[task], ARMS[arm])
        digest = self._digests[task, arm]
        return Cell(task, setting, arm, seed, rates.base, rates.hidden, decay, steps, digest)

    def _tried(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> list[Cell]:
        """An arm's own grid around the setting's rates, once these are known."""
        rates, chosen = self._base_rates(task, setting, arm, done), ARMS[arm]
        if rates is None:
            return []
        multiples = [rates.times(chosen.tunes, factor) for factor in chosen.factors]
        decay = SETTINGS[setting].decay
        return [self._cell(task, setting, arm, TUNING_SEED, r, decay) for r in multiples]

    def _base_rates(
        self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]
    ) -> Rates | None:
        """The setting's rates for an arm: of the plain run that its user would have tuned.

        With the plug-in that is the run of T full steps, without it the one as long as the arm.
        """
        tuned = arm if arm in PLAIN else "short" if ARMS[arm].plugin is None else "plain"
        grid = self._grid(task, setting, tuned)
        return best(grid, done) if grid else Rates(self.tasks[task].recipe.learning_rate)

    def rates(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> Rates | None:
        """The rates of an arm; None as long as the runs that decide them are not done."""
        chosen = ARMS[arm]
        if len(chosen.factors) > 1:
            tried = self._tried(task, setting, arm, done)
            return best(tried, done) if tried else None
        rates = self._base_rates(task, setting, arm, done)
        factor = (
            self._gain(task, setting, chosen.after, done) if chosen.after else chosen.factors[0]
        )
        if rates is None or factor is None:
            return None
        return rates.times(chosen.tunes, factor)

    def _gain(self, task: str, setting: str, arm: str, done: Mapping[Cell, Row]) -> float | None:
        """The measured speedup of an arm over all seeds, to two digits."""
        rows: list[list[Row]] = []
        for name in (*PLAIN, arm):
            if (rates := self.rates(task, setting, name, done)) is None:
                return None
            cells = [
                self._cell(task, setting, name, seed, rates, SETTINGS[setting].decay)
                for seed in range(self.suite.seeds)
            ]
            if any(cell not in done for cell in cells):
                return None
            rows.append([done[cell] for cell in cells])
        losses = [[number(row["loss"]) for row in runs] for runs in rows]
        steps = [runs[0]["full_steps"] for runs in rows[:-1]]
        costs = [row["full_steps"] for row in rows[-1]]
        return round(speedup(steps, losses[:-1], losses[-1], costs, resamples=1).value, 2)


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
    for setting, arms in suite.arms.items():
        for arm in arms:
            if (needed := ARMS[arm].after) is not None and needed not in arms:
                raise ConfigError("arms", f"{needed} beside {arm} in {setting}", list(arms))
    if suite.seeds < 1:
        raise ConfigError("seeds", "an integer, at least 1", suite.seeds)


def best(cells: Sequence[Cell], done: Mapping[Cell, Row]) -> Rates | None:
    """The rates of the cell that ended lowest, the first one if all diverged; None until done."""
    if any(cell not in done for cell in cells):
        return None
    return min(cells, key=lambda cell: number(done[cell]["loss"])).rates


def number(loss: float | None) -> float:
    """A loss as JSON holds it: None stands for a run that diverged."""
    return math.inf if loss is None else loss


def recipe_digest(task: Task, arm: Arm) -> str:
    """Twelve hexadecimal digits over the task and how the arm trains, rates left out."""
    described = task.to_dict()
    for name in ("learning_rate", "rates"):  # a cell names the rate that it uses
        described["recipe"].pop(name)
    plain: dict[str, Any] = {"task": described, "arm": arm.describe()}
    if (config := arm.config(task.steps)) is not None:
        made = {kind: make_update(u) for kind, u in config.updates.items()}
        learnt = {kind: make_predictor(p) for kind, p in config.predictors.items()}
        plain["plugin"] = [config.to_dict(), repr(made), repr(learnt)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def as_cell(row: Row) -> Cell:
    """The cell that a row is the result of."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})


def select(
    suite: Suite,
    tasks: Iterable[str] | None = None,
    settings: Iterable[str] | None = None,
    arms: Iterable[str] | None = None,
    seeds: int | None = None,
) -> Suite:
    """A part of a suite, or what else was asked for by name.

    Args:
        suite: Where to start from.
        tasks: Tasks instead of the suite's.
        settings: Settings instead of the suite's; those it lacks get the arms of ``tuned``.
        arms: Arms instead of the suite's, in every setting.
        seeds: Paired seeds instead of the suite's.
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
    """A cell with its results, as plain data."""
    return {**asdict(cell), **results}
