"""``hybrid-predict audit``: whether full steps are saved on a model of your own."""

from __future__ import annotations

import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli import program
from hybrid_predict.cli.program import PROGRAM, Command, need, under_way, with_seeds
from hybrid_predict.errors import HybridPredictError

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig, AuditResult, SearchResult

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome; 1 is the status of Python's own errors."""

FOLDER = "hybrid-predict-audit"
"""Folder for all files, unless another one is given."""

_GOES_ON = "What was finished is kept; the same command, without --overwrite, goes on."

_NOTHING = "Nothing was trained: all runs were finished before. --overwrite trains them again."


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
    add("--threads", type=program.positive, metavar="N", help=f"Threads of torch ({threads}).")
    add("--overwrite", action="store_true", help="Train all runs again.")
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _command(options: Namespace) -> int:
    """Run the audit; return the exit status, 2 if the training failed."""
    from hybrid_predict.audit.file import check_file, importable

    under_way(f"checking {options.file}")
    check_file(options.file)
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.runs.runtime import threads

    # The exit status of a traceback, 1, is not one of the audit's.
    try:
        with importable(), threads(options.threads):
            return _run(options)
    except (HybridPredictError, BrokenPipeError):  # the program handles these
        raise
    except Exception:
        traceback.print_exc()
        return program.BAD_USAGE


def _run(options: Namespace) -> int:
    from hybrid_predict.audit import audit, plan_audit, plan_search, search
    from hybrid_predict.audit.file import read_audit
    from hybrid_predict.runs.runtime import writable_folder

    under_way(f"reading {options.file}")
    make_run, config, source = read_audit(options.file)
    chosen: dict[str, Any] = {} if options.seeds is None else {"seeds": options.seeds}
    config = replace(config, **chosen, mlflow=config.mlflow and not options.no_mlflow)
    place = FOLDER if options.output_dir is None else options.output_dir
    functions: Any = plan_audit, audit, partial(show_audit, options.typed)
    if options.search:
        functions = plan_search, search, _show_search
    plan, work, show = functions
    if options.plan:
        under_way("timing a few full steps of plain training")
        done = None if options.overwrite else place
        print(plan(make_run, config, done, source=source))
        return 0
    folder = writable_folder(place, "--output-dir")
    train = partial(work, make_run, config, folder, source=source, overwrite=options.overwrite)
    need("The audit", ["mlflow"] if config.mlflow and not options.search else [])
    result = show(config, folder, train)
    return program.INTERRUPTED if result.partial else STATUS[result.outcome.value]


def show_audit(
    typed: Sequence[str],
    config: AuditConfig,
    folder: Path,
    train: Callable[..., AuditResult],
    most: int | None = None,
) -> AuditResult:
    """Run an audit with a progress bar, then print its table, its finding and its files.

    ``typed`` are the words of the command, of which the first is its name. With ``most`` only so
    many notes are printed; the report has all of them.
    """
    from hybrid_predict.audit.config import SHORTENED
    from hybrid_predict.audit.results import sentences
    from hybrid_predict.cli.screen import Screen
    from hybrid_predict.report.pages import COLUMNS, audit_rows, plain_finding, unsaved
    from hybrid_predict.runs.evidence import FEW_SEEDS, HYBRID
    from hybrid_predict.runs.tracking import tracking_uri

    part = 1.0 if isinstance(config.speedup, str) else 1.0 / config.speedup
    fewer = (*SHORTENED, HYBRID)
    lengths = [part if arm in fewer else 1.0 for arm in config.arms] * config.seeds
    print(f"{PROGRAM} {typed[0]}: {len(lengths)} runs, written to {folder}", flush=True)
    with Screen(lengths, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    results = result.results
    verdict = result.verdict
    if result.partial:
        screen.say(f"\nStopped after {len(results['runs'])} of {results['planned_runs']} runs.")
        screen.say(_GOES_ON, soft_wrap=True)
    titles = [title.format(metric=config.metric) for title in COLUMNS]
    screen.table(titles, [row.values() for row in audit_rows(results)])
    finding = plain_finding(results)
    screen.say(f"\n{finding}", style="bold")
    few = verdict.seeds < FEW_SEEDS
    tested = "The report has the tests and their bounds."
    why = [verdict.text if verdict.contrast is None else tested]
    if few and unsaved(results):  # more seeds prove nothing either
        why = []
    elif finding != verdict.headline:
        screen.say(f"Verdict: {verdict.headline}.")
        if few and not result.partial:
            screen.say(f"For proof: {with_seeds(typed, FEW_SEEDS)}", soft_wrap=True)
    texts = [*sentences(results["earned"]), *results["notes"]]
    for text in [*why, *texts] if most is None else texts[:most]:
        screen.say(f"{text}\n")
    files = [f"Report:   {folder / 'report.html'}", f"Results:  {folder / 'results.json'}"]
    files += [f"MLflow:   mlflow ui --backend-store-uri {tracking_uri(folder)}"] * config.mlflow
    screen.say("\n".join(files), soft_wrap=True)
    if not (screen.trained or result.partial):
        print(_NOTHING)
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
    print(f"{PROGRAM} audit --search: at most {most} runs, written to {folder}", flush=True)
    with Screen([1.0] * most, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    rows = []
    for tried in result.tried:
        saving = tried.verdict.saving
        saved = "" if saving is None else percent(saving)
        seeds = str(tried.verdict.seeds)
        rows.append([tried.arm, speedup_text(tried.speedup), seeds, saved, tried.finding])
    if len(result.directions) > 1:
        means = [("failed" if m is None else f"{m:.5g}") for _, m in result.directions]
        compared = [[d.name, m] for d, m in zip(result.directions, means, strict=True)]
        screen.table(["direction", f"mean {config.metric}"], compared)
        screen.say(f"Searched with {result.directions[0].name}.\n")
    screen.table(["arm", "speedup", "seeds", "fewer full steps", "finding"], rows)
    if result.partial:
        screen.say(f"\nStopped. {_GOES_ON}{' So far:' * bool(result.line)}", soft_wrap=True)
    if result.line:
        screen.say(f"\n{result.line}", style="bold", soft_wrap=True)
    screen.say(f"\nResults:  {folder / SEARCH}", soft_wrap=True)
    if not (screen.trained or result.partial):
        print(_NOTHING)
    return result


def _outcome(config: AuditConfig, run: Mapping[str, Any]) -> str:
    """Return the result of a finished run in a few words."""
    return run["failure"] or f"{config.metric} {run['metric']:.5g}"


COMMAND = Command(
    "Find out whether it saves full steps on your own model.",
    "Trains your own Lightning model in full, with a shortened schedule, with corrected updates, "
    "and with corrected updates and predicted steps, from the same seeds, and tests whether full "
    "steps are saved at equal quality. With --search it does that at several speedups, and ends "
    "with the line that builds the Trainer. An audit that was stopped continues with the same "
    "command. Exit status: 0 verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage "
    "or failed training, 130 interrupted.",
    _add_options,
    _command,
)
