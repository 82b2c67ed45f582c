"""All studies by name: their plans, their committed files, and the views of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import across, load, plot, search, suites, table
from benchmarks.clients import plan as clients
from benchmarks.clients import table as clients_table
from benchmarks.plan import Plan, Row, Selection
from benchmarks.rates import plot as rates_plot
from benchmarks.rates import table as rates_table
from benchmarks.rates.plan import RatesPlan
from benchmarks.scale import plot as scale_plot
from benchmarks.scale import table as scale_table
from benchmarks.scale.plan import ScalePlan
from benchmarks.suites import SUITES, SuitePlan
from benchmarks.yardsticks import table as yardsticks_table
from benchmarks.yardsticks import yardsticks
from benchmarks.yardsticks.plan import YardstickPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Blocks = dict[str, Callable[[], str]]
"""Functions that make blocks of pages, by the names of the blocks."""


@dataclass(frozen=True)
class Study:
    """A study.

    ``plan`` makes the plan of a selection; the folder is that of finished runs. ``file`` is the
    results file. It has all finished runs as rows, or what ``compiled`` makes of the plan, them and
    the content before; ``runs`` returns the runs of such a content. ``blocks`` and ``figures`` are
    views of it.
    """

    about: str
    file: str
    plan: Callable[[Selection, Path], Plan[Any]]
    blocks: Callable[[Any], Blocks]
    runs: Callable[[Any], Iterable[Row]] = field(default=iter)
    compiled: Callable[[Any, Mapping[Any, Row], Any], Any] | None = None
    figures: Mapping[str, Callable[[Any], Figure]] = field(default_factory=dict)

    def read(self, folder: Path) -> Any:
        """Return the content of the results file in a folder; None if there is no file."""
        return load(self.file, folder) if (folder / self.file).exists() else None


def _suite(name: str, about: str, **figures: Callable[[Any], Figure]) -> Study:
    def plan(chosen: Selection, folder: Path) -> SuitePlan:
        made = SuitePlan(suites.select(SUITES[name], chosen))
        made.check_device()
        return made

    return Study(
        about,
        f"bench-{name}.json",
        plan,
        table.blocks,
        runs=lambda results: results["runs"],
        compiled=partial(suites.compiled, name),
        figures={f"{figure}.png": draw for figure, draw in figures.items()},
    )


def _search_plan(chosen: Selection, folder: Path) -> Plan[str]:
    from benchmarks.search.plan import SearchPlan  # needs Lightning

    return SearchPlan(chosen, folder / "search")


def _search_blocks(results: Any) -> Blocks:
    from benchmarks.search import table as search_table

    return search_table.blocks(results)


STUDIES: dict[str, Study] = {
    "core": _suite(
        "core",
        "three tasks with all arms, about four hours on 2 cores",
        **{"bench-core": plot.plot, "first": across.plot},
    ),
    "wide": _suite("wide", "four more tasks, about four hours"),
    "fresh": _suite("fresh", "six tasks that nothing was tuned on, about an hour"),
    "smoke": _suite("smoke", "every task and arm for a few steps, minutes"),
    "gpu": _suite("gpu", "a GPT of 30 M parameters, on a CUDA device"),
    "rates": Study(
        "learning rates that nobody tuned",
        "rates.jsonl",
        lambda chosen, folder: RatesPlan(chosen),
        rates_table.blocks,
        figures={"rates.png": rates_plot.plot},
    ),
    "scale": Study(
        "larger models and longer runs",
        "scale.jsonl",
        lambda chosen, folder: ScalePlan(chosen),
        scale_table.blocks,
        figures={"scale.png": scale_plot.plot},
    ),
    "yardsticks": Study(
        "recipes that others published",
        "yardsticks.jsonl",
        lambda chosen, folder: YardstickPlan(yardsticks(chosen.text), chosen),
        yardsticks_table.blocks,
    ),
    "clients": Study(
        "published packages, each in an environment of its own",
        "clients.json",
        lambda chosen, folder: clients.ClientsPlan(chosen),
        clients_table.blocks,
        runs=clients.seeds,
        compiled=lambda plan, done, before: clients.compiled(done),
    ),
    "search": Study(
        "the search of an audit beside a sweep",
        "search.json",
        _search_plan,
        _search_blocks,
        runs=search.subjects,
        compiled=lambda plan, done, before: search.compiled(done),
    ),
}
