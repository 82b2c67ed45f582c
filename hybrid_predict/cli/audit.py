"""``hybrid-predict audit``: whether full steps are saved on a model of your own."""

from __future__ import annotations

import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.options import (
    PROGRAM,
    check_threads,
    integer,
    need,
    output_folder,
    under_way,
)
from hybrid_predict.cli.program import BAD_USAGE, INTERRUPTED, Command
from hybrid_predict.errors import HybridPredictError

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig, AuditResult, SearchResult

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome; 1 is the status of Python's own errors."""

_NOTHING = "Nothing was trained: all runs were finished before. --overwrite trains them again."


def _add_options(add: Any) -> None:
    add(
        "file",
        metavar="FILE",
        help="YAML file with model, data and trainer as for LightningCLI, and a section audit.",
    )
    add(
        "--output-dir",
        default="hybrid-predict-audit",
        metavar="FOLDER",
        help="Folder for all files (hybrid-predict-audit).",
    )
    add("--seeds", type=integer, metavar="N", help="Paired seeds (those of the file, or 5).")
    add("--threads", type=integer, metavar="N", help="Threads of torch (torch's own choice).")
    add("--plan", action="store_true", help="Only print what would be trained and for how long.")
    add("--overwrite", action="store_true", help="Train all runs again.")
    add(
        "--search",
        action="store_true",
        help="Instead of one verdict, find the largest speedup that keeps quality, out of the "
        "file's audit.speedups: with corrected updates alone, and with predicted steps.",
    )
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _command(options: Namespace) -> int:
    """Run the audit; return the exit status, 2 if the training failed."""
    from hybrid_predict.audit.file import check_file, importable

    check_threads(options.threads)
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
        return BAD_USAGE


def _run(options: Namespace) -> int:
    from hybrid_predict.audit import audit, plan_audit, plan_search, search
    from hybrid_predict.audit.file import read_audit

    under_way(f"reading {options.file}")
    make_run, config, source = read_audit(options.file)
    chosen: dict[str, Any] = {} if options.seeds is None else {"seeds": options.seeds}
    config = replace(config, **chosen, mlflow=config.mlflow and not options.no_mlflow)
    if options.plan:
        under_way("timing a few full steps of plain training")
        done = None if options.overwrite else options.output_dir
        plan: Any = plan_search if options.search else plan_audit
        print(plan(make_run, config, done, source=source))
        return 0
    folder = output_folder(options.output_dir)
    train: Any = partial(
        search if options.search else audit,
        make_run, config, folder, source=source, overwrite=options.overwrite,
    )  # fmt: skip
    result: AuditResult | SearchResult
    if options.search:
        result = _show_search(config, folder, train)
    else:
        need("The audit", ["mlflow"] if config.mlflow else [])
        result = show_audit("audit", config, folder, train)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]


def show_audit(
    command: str, config: AuditConfig, folder: Path, train: Callable[..., AuditResult]
) -> AuditResult:
    """Run an audit with a progress bar, then print its table, its finding and its files."""
    from hybrid_predict.audit.config import SHORTENED
    from hybrid_predict.audit.earned import sentences
    from hybrid_predict.cli.screen import Screen
    from hybrid_predict.report.audit import COLUMNS, audit_rows, plain_finding
    from hybrid_predict.runs.evidence import HYBRID

    fewer = (*SHORTENED, HYBRID)
    lengths = [1.0 / config.speedup if a in fewer else 1.0 for a in config.arms] * config.seeds
    print(f"{PROGRAM} {command}: {len(lengths)} runs, written to {folder}", flush=True)
    with Screen(lengths, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    titles = [title.format(metric=config.metric) for title in COLUMNS]
    table = (titles, [row.values() for row in audit_rows(result.results)])
    notes = [*sentences(result.results["earned"]), *result.results["notes"]]
    shown = {**result.results, "notes": notes}
    screen.conclude(shown, _conclusion(plain_finding(shown), shown["verdict"]), table, folder,
                    mlflow=config.mlflow)  # fmt: skip
    if not (screen.trained or result.partial):
        print(_NOTHING)
    return result


def _show_search(
    config: AuditConfig, folder: Path, train: Callable[..., SearchResult]
) -> SearchResult:
    """Run a search with a progress bar, then print its candidates and the line to paste."""
    from hybrid_predict.audit.plan import most_runs
    from hybrid_predict.audit.store import SEARCH
    from hybrid_predict.audit.verdict import percent
    from hybrid_predict.cli.screen import Screen

    most = most_runs(config)
    print(f"{PROGRAM} audit --search: at most {most} runs, written to {folder}", flush=True)
    with Screen([1.0] * most, partial(_outcome, config)) as screen:
        result = train(observer=screen)
    rows = [
        [
            tried.arm, f"{tried.speedup:g}", str(tried.verdict.seeds),
            "" if tried.verdict.saving is None else percent(tried.verdict.saving),
            tried.finding,
        ]
        for tried in result.tried
    ]  # fmt: skip
    titles = ["arm", "speedup", "seeds", "fewer full steps", "finding"]
    screen.answer(titles, rows, result.line, folder / SEARCH, partial=result.partial)
    if not (screen.trained or result.partial):
        print(_NOTHING)
    return result


def _outcome(config: AuditConfig, run: Mapping[str, Any]) -> str:
    """Return the result of a finished run in a few words."""
    return run["failure"] or f"{config.metric} {run['metric']:.5g}"


def _conclusion(finding: str, verdict: Mapping[str, Any]) -> dict[str, str]:
    """Return the finding and the verdict; the statistics are in the report."""
    lines = [] if finding == verdict["headline"] else [f"Verdict: {verdict['headline']}."]
    tested = verdict["contrast"] is not None
    lines.append("The report has the tests and their bounds." if tested else verdict["text"])
    return {"headline": finding, "text": "\n".join(lines)}


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
