"""All studies by name: their plans, their files, and the views of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import load
from benchmarks.cells import CellPlan
from benchmarks.plan import Plan, Row, Selection
from benchmarks.studies import clients, edges, gpu, rates, scale, suites, yardsticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Blocks = dict[str, Callable[[], str]]  # what makes blocks of pages, by their names


@dataclass(frozen=True)
class Study:
    """A study, with the ``plan`` of a selection, and ``blocks`` and ``figures`` as views.

    ``file`` is the results file: all finished runs as rows, or what ``compiled`` makes of the
    selection, these rows, whether all chosen runs are finished, and the content of the file before.
    ``runs`` returns the runs of such a content.
    """

    about: str
    file: str
    plan: Callable[[Selection], Plan[Any]]
    blocks: Callable[[Any], Blocks]
    runs: Callable[[Any], Iterable[Row]] = field(default=iter)
    compiled: Callable[[Selection, Sequence[Row], bool, Any], Any] | None = None
    figures: Mapping[str, Callable[[Any], Figure]] = field(default_factory=dict)

    def read(self, folder: Path) -> Any:
        """Return the content of the results file in a folder; None if there is no file."""
        return load(self.file, folder) if (folder / self.file).exists() else None


def _suite(name: str, about: str, **others: Any) -> Study:
    suite = suites.SUITES[name]
    others |= {"runs": itemgetter("runs"), "compiled": suite.compiled}
    return Study(about, f"bench-{name}.json", suite.plan, suites.blocks, **others)


STUDIES: dict[str, Study] = {
    "core": _suite(
        "core", "three tasks, all arms, four hours", figures={"first.png": suites.first}
    ),
    "wide": _suite("wide", "four more tasks, about four hours"),
    "fresh": _suite("fresh", "six tasks that nothing was tuned on, about an hour"),
    "smoke": _suite("smoke", "every task and arm for a few steps, minutes"),
    "rates": Study(
        "learning rates that nobody tuned",
        "rates.jsonl",
        lambda chosen: CellPlan(rates.lines(), chosen),
        rates.blocks,
        figures={"rates.png": rates.figure},
    ),
    "edges": Study(
        "data that a model overfits, few hidden weights, fine-tuning; about an hour",
        "edges.jsonl",
        edges.EdgesPlan,
        edges.blocks,
    ),
    "scale": Study(
        "larger models and longer runs",
        "scale.jsonl",
        lambda chosen: CellPlan(scale.lines(), chosen),
        scale.blocks,
    ),
    "yardsticks": Study(
        "recipes that others published",
        "yardsticks.jsonl",
        lambda chosen: CellPlan(yardsticks.lines(chosen), chosen),
        yardsticks.blocks,
    ),
    "gpu": Study(
        "ten minutes on a CUDA device; without one, a rehearsal at toy size",
        "gpu.jsonl",
        gpu.GPUPlan,
        gpu.blocks,
    ),
    "clients": Study(
        "published packages, each in an environment of its own",
        "clients.json",
        clients.ClientsPlan,
        clients.blocks,
        runs=clients.seeds,
        compiled=clients.compiled,
    ),
    "averages": Study(
        "four of these with an average of the weights",
        "averages.json",
        clients.AveragesPlan,
        clients.averages,
        runs=clients.seeds,
        compiled=clients.compiled,
    ),
}
