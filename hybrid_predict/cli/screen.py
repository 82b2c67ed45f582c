"""Progress and results on the terminal, or in a file line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hybrid_predict.audit.config import speedup_text
from hybrid_predict.config import Speedup
from hybrid_predict.report.plain_text import printable
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import Observer

Run = Mapping[str, Any]
"""Entry of a run in a results file."""


class Screen(Observer):
    """Shows a bar for all runs and one for the current run; prints a line for each finished run.

    ``lengths`` are those expected of the runs, in order and in any unit; ``done`` of them were
    finished before. The line of a finished run begins with its ``name`` and ends with its
    ``outcome``.
    """

    def __init__(
        self,
        lengths: Sequence[float],
        outcome: Callable[[Run], str],
        *,
        name: Callable[[Run], str] | None = None,
        done: int = 0,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(highlight=False, markup=False)
        self._lengths = lengths
        self._outcome = outcome
        self._name = name or self._arm_and_seed
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
        self._done = done
        self._steps = 0
        self._known = 0
        self._speedup: Speedup | None = None
        self._direction = ""
        self._show_done()

    @property
    def trained(self) -> int:
        """Number of runs that were not finished before."""
        return self._done - self._known

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        """Show the run on the second bar."""
        self._steps = steps
        name = self._name({"arm": arm, "seed": seed})
        self._progress.reset(self._one, description=name, total=steps, note="", visible=True)

    def stepped(self, steps: int, loss: float) -> None:
        """Move both bars."""
        note = f"{steps:,}/{self._steps:,} steps, loss {loss:.3f}"
        self._progress.update(self._one, completed=steps, note=note)
        length = self._lengths[min(self._done, len(self._lengths) - 1)]
        part = length * min(1.0, steps / self._steps)
        self._progress.update(self._all, completed=sum(self._lengths[: self._done]) + part)

    def run_found(self, run: Run) -> None:
        """Print a line for a run that was finished before."""
        self._known += 1
        self.run_finished(run, ", done before")

    def run_finished(self, run: Run, note: str = "") -> None:
        """Print a line for a finished run, which ends with a note."""
        self._done += 1
        self._show_done()
        self.say(
            f"{self._done}/{len(self._lengths)}  {self._name(run)}: {run['full_steps']:,} full "
            f"steps in {run['seconds']:.1f} s, {self._outcome(run)}{note}",
            soft_wrap=True,
        )

    def direction_started(self, name: str) -> None:
        """Name the corrected update in the lines of the runs that follow."""
        self._direction = name

    def candidate_started(self, arm: str, speedup: Speedup) -> None:
        """Name the speedup in the lines of the runs that follow."""
        self._speedup = speedup

    def candidate_finished(self, arm: str, speedup: Speedup, finding: str) -> None:
        """Print a line for a candidate that was tested."""
        self.say(f"{arm} at speedup {speedup_text(speedup)}: {finding}", style="bold")

    def say(self, text: str, **options: Any) -> None:
        """Print text at once; no markup in it is read, and control characters are replaced."""
        self._console.print("\n".join(map(printable, text.split("\n"))), **options)
        self._console.file.flush()

    def table(self, titles: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
        """Print rows below the titles of their columns; nothing if there are none."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(titles[0], no_wrap=True)
        for title in titles[1:]:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(printable, row))
        if table.row_count:
            self._console.print()
            self._console.print(table)

    def _arm_and_seed(self, run: Run) -> str:
        """Return the first words of a run's line; the full arm is the same at every speedup."""
        arm = run["arm"]
        speedup = ""
        if self._speedup is not None and arm != FULL:
            speedup = f" at speedup {speedup_text(self._speedup)}"
        direction = f" ({self._direction})" if self._direction and arm not in (FULL, SHORT) else ""
        return f"{arm}{direction}{speedup}, seed {run['seed']}"

    def _show_done(self) -> None:
        completed = sum(self._lengths[: self._done])
        note = f"{self._done}/{len(self._lengths)} done"
        self._progress.update(self._all, completed=completed, note=note)
