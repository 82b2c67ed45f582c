"""Progress and results on the terminal, or in a file line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hybrid_predict.audit.config import speedup_text
from hybrid_predict.audit.training import Observer
from hybrid_predict.config import Speedup
from hybrid_predict.runs.files import printable


class Screen(Observer):
    """Shows a bar for all runs and one for the current run; prints a line for each finished run.

    ``lengths`` are those expected of the runs, in order and in any unit. The lines of a search name
    the speedup of each run.
    """

    def __init__(self, lengths: Sequence[float], metric: str, *, searching: bool = False) -> None:
        self._console = Console(highlight=False, markup=False)
        self._lengths = lengths
        self._metric = metric
        self._searching = searching
        self._done = 0
        self._steps = 1
        self.trained = 0  # runs that were not finished before
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        self._all = self._progress.add_task("all runs", total=sum(lengths), note="")
        self._one = self._progress.add_task("", note="", visible=False)

    @property
    def done(self) -> str:
        """How many of the runs are finished, in words."""
        return f"{self._done} of {len(self._lengths)} runs"

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        """Show the run on the second bar."""
        self._steps = steps
        title = f"{arm}, seed {seed}"
        self._progress.reset(self._one, description=title, total=steps, note="", visible=True)

    def stepped(self, steps: int, loss: float) -> None:
        """Move both bars."""
        note = f"{steps:,}/{self._steps:,} steps, loss {loss:.3f}"
        self._progress.update(self._one, completed=steps, note=note)
        self._move(min(1.0, steps / self._steps))

    def run_found(self, run: Mapping[str, Any]) -> None:
        """Print a line for a run that was finished before."""
        self._add(run, ", done before")

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """Print a line for a run that is finished now."""
        self.trained += 1
        self._add(run, "")

    def candidate_finished(self, arm: str, speedup: Speedup, finding: str) -> None:
        """Print a line for a candidate that was tested."""
        self.say(f"{arm} at speedup {speedup_text(speedup)}: {finding}", style="bold")

    def say(self, text: str, **options: Any) -> None:
        """Print text at once; no markup in it is read, and control characters are replaced."""
        text = "\n".join(map(printable, text.split("\n")))
        self._console.print(text, **{"soft_wrap": True, **options})
        self._console.file.flush()

    def table(self, titles: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
        """Print rows below the titles of their columns; nothing if there are none."""
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for title in titles:
            justify: Any = "left" if title == titles[0] else "right"
            table.add_column(title, justify=justify, no_wrap=True)
        for row in rows:
            table.add_row(*map(printable, row))
        if table.row_count:
            self._console.print()
            self._console.print(table)

    def _add(self, run: Mapping[str, Any], note: str) -> None:
        self._done += 1
        self._move(0.0)
        name = run["arm"]
        if self._searching and run["speedup"] is not None:
            name += f" at speedup {speedup_text(run['speedup'])}"
        outcome = run["failure"] or f"{self._metric} {run['metric']:.5g}"
        self.say(
            f"{self._done}/{len(self._lengths)}  {name}, seed {run['seed']}: "
            f"{run['full_steps']:,} full steps in {run['seconds']:.1f} s, {outcome}{note}"
        )

    def _move(self, part: float) -> None:
        """Move the bar of all runs to a part of the one after those that are done."""
        length = self._lengths[min(self._done, len(self._lengths) - 1)]
        completed = sum(self._lengths[: self._done]) + part * length
        self._progress.update(self._all, completed=completed, note=self.done)
