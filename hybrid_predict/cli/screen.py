"""Audits on the terminal, or in a file line by line: progress, results, and where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from hybrid_predict.audit import AuditConfig, AuditResult, SearchResult, audit, search
from hybrid_predict.audit.config import speedup_text
from hybrid_predict.audit.results import arm_rows
from hybrid_predict.audit.search import SEARCH, most_runs
from hybrid_predict.audit.tracking import tracking_uri
from hybrid_predict.audit.training import Observer
from hybrid_predict.config import Speedup
from hybrid_predict.ledger import duration
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, FULL, HYBRID, LEAST_SAVING
from hybrid_predict.runs.files import printable

MOST_NOTES = 3
"""Notes that are printed of a hint; the report has all."""


class Screen(Observer):
    """Shows how far all runs together are, and a line for each finished one.

    A terminal gets a bar; a file or a pipe gets a line when a run begins. ``runs`` is the number of
    runs, for a search the largest one.
    """

    def __init__(self, runs: int, metric: str) -> None:
        self.console = Console(highlight=False, markup=False)
        self._runs = runs
        self._metric = metric
        self._done = 0
        self._trained = 0
        self._name = ""
        self._steps = 0
        self._progress = Progress(console=self.console, disable=not self.console.is_terminal)
        self._bar = self._progress.add_task("", total=runs, visible=False)

    def train(self, work: Callable[..., Any], folder: Path, **options: Any) -> Any:
        """Run an audit or a search, and say what it has not trained."""
        with self._progress:
            result = work(folder=folder, observer=self, **options)
            if not result.partial:  # a search may need fewer runs
                self._progress.update(self._bar, description=f"{self._done} runs", total=self._done)
        if result.partial:
            goes_on = "What was finished is kept; the same command goes on."
            self.say(f"Stopped after {self._done} of {self._runs} runs. {goes_on}")
        elif not self._trained:
            self.say("All runs were finished before, so nothing was trained.")
        return result

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        """Show the run; what was finished before says nothing about the time left."""
        self._name = f"{self._done + 1}/{self._runs} {arm}, seed {seed}"
        self._steps = steps
        self._progress.reset(self._bar, completed=self._done, total=self._runs, visible=True)
        self.stepped(0)
        if not self.console.is_terminal:
            self.say(f"{self._name}: {steps:,} steps")

    def stepped(self, steps: int) -> None:
        """Move the bar."""
        text = f"{self._name}: {steps:,} of {self._steps:,} steps"
        done = self._done + steps / self._steps
        self._progress.update(self._bar, description=text, completed=done)

    def run_finished(self, run: Mapping[str, Any], trained: bool) -> None:
        """Print a line."""
        self._done += 1
        self._trained += trained
        self._progress.update(self._bar, completed=self._done)
        speedup = f" at speedup {speedup_text(run['speedup'])}" if run["speedup"] else ""
        outcome = run["failure"] or f"{self._metric} {run['metric']:.5g}"
        note = "" if trained else ", done before"
        self.say(
            f"{self._done}/{self._runs} {run['arm']}{speedup}, seed {run['seed']}: "
            f"{run['full_steps']:,} full steps in {run['seconds']:.1f} s, {outcome}{note}"
        )

    def candidate_finished(self, arm: str, speedup: Speedup, outcome: str) -> None:
        """Print a line for a candidate that was tested."""
        self.say(f"{arm} at speedup {speedup_text(speedup)}: {outcome}", "bold")

    def say(self, text: str, style: str | None = None) -> None:
        """Print text at once; no markup in it is read, and control characters are replaced."""
        text = "\n".join(map(printable, text.split("\n")))
        self.console.print(text, style=style, soft_wrap=True)
        self.console.file.flush()


def show_audit(config: AuditConfig, folder: Path, **options: Any) -> AuditResult:
    """Run an audit with a progress bar, then print its table, its finding and its files."""
    runs = len(config.arms) * config.seeds
    screen = Screen(runs, config.metric)
    screen.say(f"{runs} runs, written to {folder}")
    result: AuditResult = screen.train(audit, folder, config=config, **options)
    results = result.results
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = arm_rows(results)
    for title in rows[0] if rows else ():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row.values()))
    if table.rows:
        screen.console.print(table)
    verdict = result.verdict
    screen.say(f"{verdict.headline}", "bold")
    # Where nothing was saved, more seeds prove nothing either.
    provable = verdict.saving is not None and verdict.saving >= LEAST_SAVING
    if verdict.seeds < FEW_SEEDS and provable and not result.partial:
        screen.say(f"For proof: the same command with --seeds {FEW_SEEDS}.")
    notes = [*_slower(results["summary"]), *results["notes"]]
    shown = notes if verdict.seeds >= FEW_SEEDS else notes[:MOST_NOTES]
    for text in shown:
        screen.console.print(f"{printable(text)}\n")
    more = " (with further notes)" if len(notes) > len(shown) else ""
    screen.say(f"Report:   {folder / 'report.html'}{more}\nResults:  {folder / 'results.json'}")
    if config.mlflow:
        screen.say(f"MLflow:   mlflow ui --backend-store-uri {quote(tracking_uri(folder))}")
    return result


def _slower(summary: Mapping[str, Any]) -> Iterator[str]:
    """Tell why the hybrid arm took longer, if it did."""
    if not summary.keys() >= {FULL, CORRECTED, HYBRID}:
        return
    plain, corrected = (summary[k]["seconds"] / summary[k]["full_steps"] for k in (FULL, CORRECTED))
    took = summary[HYBRID]["seconds"]
    before = summary[FULL]["seconds"]
    if plain < corrected and before < took:
        yield (
            f"It was slower: {duration(took)} in place of {duration(before)}, because a full step "
            f"of this model takes only {duration(plain)}, and correcting it "
            f"{duration(corrected - plain)} more. Larger models or batches take longer per full "
            "step, so that fewer of them save time."
        )


def show_search(config: AuditConfig, folder: Path, **options: Any) -> SearchResult:
    """Run a search with a progress bar and a line per candidate, then print the line to paste."""
    runs = most_runs(config)
    screen = Screen(runs, config.metric)
    screen.say(f"at most {runs} runs, written to {folder}")
    result: SearchResult = screen.train(search, folder, config=config, **options)
    screen.say(f"\n{result.line}\n", "bold")
    screen.say(f"Results:  {folder / SEARCH}")
    return result
