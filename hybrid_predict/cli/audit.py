"""``hybrid-predict audit``: whether full steps are saved on a model of your own."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.program import INTERRUPTED, PROGRAM, Command, need, positive

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig, AuditResult, SearchResult
    from hybrid_predict.cli.screen import Screen

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome."""

FOLDER = "hybrid-predict-audit"
"""Folder for all files, unless another one is given."""


def _add_options(add: Any) -> None:
    text = "YAML file with model, data and trainer as for LightningCLI, and a section audit."
    add("file", metavar="FILE", help=text)
    add("--plan", action="store_true", help="Only print what would be trained and for how long.")
    text = (
        "Instead of one verdict, find the largest speedup that keeps quality, out of the file's "
        "audit.speedups: with corrected updates alone, and with predicted steps."
    )
    add("--search", action="store_true", help=text)
    add_shared(add, "those of the file, or 5", FOLDER, "torch's own choice")


def add_shared(add: Any, seeds: str, folder: str, threads: str) -> None:
    """Add the options of every command that audits, with their defaults in words."""
    add("--seeds", type=int, metavar="N", help=f"Number of paired seeds ({seeds}).")
    add("--output-dir", metavar="FOLDER", help=f"Folder for all files ({folder}).")
    add("--threads", type=positive, metavar="N", help=f"Threads of torch ({threads}).")
    add("--overwrite", action="store_true", help="Train all runs again.")
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _run(options: Namespace) -> int:
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit import audit, plan_audit, plan_search, search
    from hybrid_predict.audit.file import importable, read_audit
    from hybrid_predict.runs.runtime import threads, writable_folder

    with importable(), threads(options.threads):
        make_run, config, source = read_audit(options.file)
        if options.seeds is not None:
            config = replace(config, seeds=options.seeds)
        if options.no_mlflow or options.search:
            config = replace(config, mlflow=False)
        place = FOLDER if options.output_dir is None else options.output_dir
        if options.plan and options.search:
            print(plan_search(make_run, config))
            return 0
        if options.plan:
            done = None if options.overwrite else place
            print(plan_audit(make_run, config, done, source=source))
            return 0
        folder = writable_folder(place, "--output-dir")
        need("The audit", ["mlflow"] if config.mlflow else [])
        work: Any = search if options.search else audit
        show = _show_search if options.search else show_audit
        train = partial(work, make_run, config, folder, source=source, overwrite=options.overwrite)
        result = show(config, folder, train)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]


def show_audit(
    config: AuditConfig, folder: Path, train: Callable[..., AuditResult], most: int | None = None
) -> AuditResult:
    """Run an audit with a progress bar, then print its table, its finding and its files.

    With ``most`` only so many notes are printed; the report has all of them.
    """
    from hybrid_predict.audit.notes import COLUMNS, arm_rows
    from hybrid_predict.audit.tracking import tracking_uri
    from hybrid_predict.cli.screen import Screen
    from hybrid_predict.runs.evidence import FEW_SEEDS, HYBRID, LEAST_SAVING

    part = 1.0 if isinstance(config.speedup, str) else 1.0 / config.speedup
    fewer = {name for name, arm in config.arms.items() if arm.shortened or name == HYBRID}
    lengths = [part if arm in fewer else 1.0 for arm in config.arms] * config.seeds
    print(f"{PROGRAM}: {len(lengths)} runs, written to {folder}", flush=True)
    with Screen(lengths, config.metric) as screen:
        result = train(observer=screen)
    results = result.results
    verdict = result.verdict
    titles = [title.format(metric=config.metric) for title in COLUMNS]
    screen.table(titles, arm_rows(results))
    screen.say(f"\n{verdict.headline}", style="bold", soft_wrap=False)
    # Where nothing was saved, more seeds prove nothing either.
    provable = verdict.saving is not None and verdict.saving >= LEAST_SAVING
    if verdict.seeds < FEW_SEEDS and provable and not result.partial:
        screen.say(f"For proof: the same command with --seeds {FEW_SEEDS}.")
    for text in results["notes"][:most]:
        screen.say(f"{text}\n", soft_wrap=False)
    screen.say(f"Report:   {folder / 'report.html'}\nResults:  {folder / 'results.json'}")
    if config.mlflow:
        screen.say(f"MLflow:   mlflow ui --backend-store-uri {tracking_uri(folder)}")
    _say_what_was_trained(screen, result.partial)
    return result


def _show_search(
    config: AuditConfig, folder: Path, train: Callable[..., SearchResult]
) -> SearchResult:
    """Run a search with a progress bar, then print its candidates and the line to paste."""
    from hybrid_predict.audit.config import speedup_text
    from hybrid_predict.audit.plan import most_runs
    from hybrid_predict.audit.store import SEARCH
    from hybrid_predict.audit.verdict import percent
    from hybrid_predict.cli.screen import Screen

    most = most_runs(config)
    print(f"{PROGRAM}: at most {most} runs, written to {folder}", flush=True)
    with Screen([1.0] * most, config.metric, searching=True) as screen:
        result = train(observer=screen)
    rows = []
    for tried in result.results["tried"]:
        saved = "" if tried["saving"] is None else percent(tried["saving"])
        speedup = speedup_text(tried["speedup"])
        rows.append([tried["arm"], speedup, str(tried["seeds"]), saved, tried["finding"]])
    screen.table(["arm", "speedup", "seeds", "fewer full steps", "finding"], rows)
    screen.say(f"\n{result.line}\n", style="bold")
    screen.say(f"Results:  {folder / SEARCH}")
    _say_what_was_trained(screen, result.partial)
    return result


def _say_what_was_trained(screen: Screen, partial: bool) -> None:
    """Say that the audit was stopped, or had nothing to train."""
    if partial:
        goes_on = "What was finished is kept; the same command, without --overwrite, goes on."
        screen.say(f"Stopped after {screen.done}. {goes_on}")
    elif not screen.trained:
        screen.say("All runs were finished before, so nothing was trained.")


COMMAND = Command(
    "Find out whether it saves full steps on your own model.",
    "Trains your own Lightning model in full, with a shortened schedule, with corrected updates, "
    "and with corrected updates and predicted steps, from the same seeds, and tests whether full "
    "steps are saved at equal quality. With --search it does that at several speedups, and ends "
    "with the line that builds the Trainer. An audit that was stopped continues with the same "
    "command. Exit status: 0 verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage "
    "or failed training, 130 interrupted.",
    _add_options,
    _run,
)
