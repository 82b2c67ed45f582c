"""The runs of a study: cells of tasks, arms, settings and seeds, and what a plan of them tells."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from benchmarks.arms import ARMS
from benchmarks.optimizers import Rates
from hybrid_predict.errors import ConfigError

K = TypeVar("K")

TUNING = "tuning"
TUNING_SEED = 1000
"""Name of the setting and the seed of runs over a grid; comparisons use other seeds."""

Row = Mapping[str, Any]
"""The fields of a finished cell and its results."""


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


def as_cell(row: Row) -> Cell:
    """Return the cell of a row."""
    return Cell(**{name: row[name] for name in Cell.__dataclass_fields__})


class Selection(NamedTuple):
    """The part of a study that a command chooses; None leaves what the study has.

    ``text`` is a text file for the yardstick `nanogpt`.
    """

    tasks: tuple[str, ...] | None = None
    settings: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None
    seeds: int | None = None
    text: Path | None = None


def check_chosen(argument: str, chosen: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raise `ConfigError` if a chosen name is not one of those that a study has."""
    names = list(dict.fromkeys(known))
    for name in chosen or ():
        if name not in names:
            raise ConfigError(argument, f"names out of {', '.join(names)}", name)


class Plan(ABC, Generic[K]):
    """The runs of a study by their keys; some are known only once others are finished."""

    @abstractmethod
    def keys(self, done: Mapping[K, Row]) -> Iterator[K]:
        """Yield the runs that can be made now, in order, with the finished ones."""

    @abstractmethod
    def key(self, row: Row) -> K:
        """Return the key of a row."""

    @abstractmethod
    def work(self, key: K) -> Row:
        """Make a run, in any process, and return its row."""

    @abstractmethod
    def tell(self, row: Row) -> str:
        """Return a line on a finished run."""

    def holds(self, row: Row) -> bool:
        """Return whether a finished run would be made in the same way again."""
        return True

    def ready(self, done: Mapping[K, Row]) -> list[K]:
        """Return the runs that can be made now; more are ready once these are finished."""
        return [key for key in dict.fromkeys(self.keys(done)) if key not in done]

    def chosen(self, done: Mapping[K, Row]) -> dict[K, Row]:
        """Return the finished runs of this plan."""
        return {key: done[key] for key in dict.fromkeys(self.keys(done)) if key in done}


def number(loss: float | None) -> float:
    """Return a loss of a results file, with infinity for None, a diverged run."""
    return math.inf if loss is None else loss
