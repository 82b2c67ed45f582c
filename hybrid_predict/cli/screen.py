"""Progress and results on the terminal, or in a file line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import Observer
from hybrid_predict.runs.tracking import tracking_uri


class Screen(Observer):
    """Shows two bars, all runs and the current one, and leaves a line behind for each run.

    Args:
        lengths: Expected length of each run, in their order and in any unit.
        outcome: What the line of a finished run says last.
    """

    def __init__(
        self, lengths: Sequence[float], outcome: Callable[[Mapping[str, Any]], str]
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._console = Console(highlight=False)
        self._lengths = lengths
        self._outcome = outcome
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            Remaining(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        note = f"0/{len(lengths)} done"
        self._all = self._progress.add_task("all runs", total=sum(lengths), note=note)
        self._one = self._progress.add_task("preparing", total=None, note="")
        self._done = self._planned = self.found = 0
        self._speedup: float | None = None

    @property
    def trained(self) -> int:
        """How many runs were not done before."""
        return self._done - self.found

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run_started(self, arm: str, seed: int, full_steps: int) -> None:
        """Show the coming run on the second bar."""
        self._planned = full_steps
        self._progress.reset(
            self._one, description=self._name(arm, seed), total=full_steps, note=""
        )

    def stepped(self, full_steps: int, loss: float) -> None:
        """Move both bars."""
        note = f"{full_steps:,}/{self._planned:,} full steps, loss {loss:.3f}"
        self._progress.update(self._one, completed=full_steps, note=note)
        share = min(1.0, full_steps / self._planned)
        now = (
            sum(self._lengths[: self._done])
            + share * self._lengths[min(self._done, len(self._lengths) - 1)]
        )
        self._progress.update(self._all, completed=now)

    def run_found(self, run: Mapping[str, Any]) -> None:
        """Leave one line behind that says that nothing was trained."""
        self.found += 1
        self._leave(run, ", done before")

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """Leave one line behind."""
        self._leave(run)

    def candidate_started(self, arm: str, speedup: float) -> None:
        """Name the speedup of the runs that follow."""
        self._speedup = speedup

    def candidate_finished(self, arm: str, speedup: float, finding: str) -> None:
        """Leave one line behind that says what came of it."""
        self._console.print(f"{arm} at speedup {speedup:g}: {finding}", style="bold")
        self._console.file.flush()

    def _name(self, arm: str, seed: int) -> str:
        """What a run is called; the full arm is the same at every speedup."""
        if self._speedup is not None and arm != FULL:
            arm = f"{arm} at speedup {self._speedup:g}"
        return f"{arm}, seed {seed}"

    def _leave(self, run: Mapping[str, Any], note: str = "") -> None:
        self._done += 1
        done = f"{self._done}/{len(self._lengths)}"
        completed = sum(self._lengths[: self._done])
        self._progress.update(self._all, completed=completed, note=f"{done} done")
        self._console.print(
            f"{done}  {self._name(run['arm'], run['seed'])}: {run['full_steps']:,} full steps "
            f"in {run['seconds']:.1f} s, {self._outcome(run)}{note}",
            soft_wrap=True,
        )
        self._console.file.flush()

    def conclude(
        self,
        results: Mapping[str, Any],
        conclusion: Mapping[str, str],
        table: tuple[Sequence[str], Iterable[Iterable[str]]],
        folder: Path,
        *,
        mlflow: bool,
    ) -> None:
        """Print the table, the conclusion, and where to look further.

        Args:
            results: What the results file holds.
            conclusion: Its ``headline`` and its ``text``.
            table: Titles of the columns, and the rows.
            folder: The output folder.
            mlflow: Whether the runs are in MLflow too.
        """
        show = self._console.print
        if results["partial"]:
            show(f"\nStopped after {len(results['runs'])} of {results['planned_runs']} runs.")
        self._show_table(*table)
        show(f"\n[bold]{conclusion['headline']}[/bold]\n{conclusion['text']}\n")
        for note in results.get("notes", ()):
            show(f"{note}\n")
        show(f"Report:   {folder / 'report.html'}", soft_wrap=True)
        show(f"Results:  {folder / 'results.json'}", soft_wrap=True)
        if mlflow:
            uri = tracking_uri(folder)
            show(f"MLflow:   mlflow ui --backend-store-uri {uri}", soft_wrap=True)

    def answer(
        self,
        titles: Sequence[str],
        rows: Iterable[Iterable[str]],
        line: str,
        results: Path,
        *,
        partial: bool,
    ) -> None:
        """Print what a search has tried, and the line to paste.

        Args:
            titles: Of the table's columns.
            rows: A row for each candidate.
            line: The line; empty if it is not known yet.
            results: The results file.
            partial: Whether the search was stopped before its answer was final.
        """
        show = self._console.print
        self._show_table(titles, rows)
        if partial:
            show("\nStopped; the same command goes on." + " So far:" * bool(line))
        if line:  # in it square brackets are Python's
            show(f"\n{line}", style="bold", markup=False, soft_wrap=True)
        show(f"\nResults:  {results}", soft_wrap=True)

    def _show_table(self, titles: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(titles[0], no_wrap=True)
        for title in titles[1:]:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            self._console.print()
            self._console.print(table)
