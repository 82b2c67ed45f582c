"""``hybrid-predict audit``: whether full steps are saved on a model of one's own."""

from __future__ import annotations

import traceback
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.options import PROGRAM, integer, need, output_folder
from hybrid_predict.cli.program import BAD_USAGE, INTERRUPTED, Command
from hybrid_predict.errors import ConfigError, HybridPredictError

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig
    from hybrid_predict.audit.arm import MakeRun

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome; 1 is what Python itself ends with when something is broken."""


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
        help="Where everything is written (hybrid-predict-audit).",
    )
    add("--seeds", type=integer, metavar="N", help="Paired seeds (those of the file, or 5).")
    add("--threads", type=integer, metavar="N", help="Threads of torch (torch's own choice).")
    add("--plan", action="store_true", help="Only say what would be trained and how long it takes.")
    add("--search", action="store_true",
        help="Find the largest of the file's speedups that keeps quality.")  # fmt: skip
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _command(options: Namespace) -> int:
    """Run the audit.

    Args:
        options: What was parsed.

    Returns:
        0 for a verified saving, 4 for none, 3 if there are not enough seeds to tell, 2 if the
        training failed, 130 after Ctrl-C.
    """
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit.yaml_file import importable
    from hybrid_predict.runs.runtime import threads

    if options.threads is not None and options.threads < 1:
        raise ConfigError("--threads", "an integer, at least 1", options.threads)

    # A traceback's own exit status, 1, is none of the audit's outcomes.
    try:
        with importable(), threads(options.threads):
            return _run(options)
    except HybridPredictError:
        raise
    except Exception:
        traceback.print_exc()
        return BAD_USAGE


def _run(options: Namespace) -> int:
    from hybrid_predict.audit import plan_audit, plan_search
    from hybrid_predict.audit.yaml_file import read_audit

    make_run, config, source = read_audit(options.file)
    chosen: dict[str, Any] = {} if options.seeds is None else {"seeds": options.seeds}
    config = replace(config, **chosen, mlflow=config.mlflow and not options.no_mlflow)
    if options.plan and options.search:
        print(plan_search(make_run, config))
        return 0
    if options.search:
        return _search(make_run, config, source, options.output_dir)
    if options.plan:
        print(plan_audit(make_run, config, options.output_dir, source=source))
        return 0
    return _audit(make_run, config, source, options.output_dir)


def _audit(make_run: MakeRun, config: AuditConfig, source: dict[str, Any], output: str) -> int:
    from hybrid_predict.audit import audit
    from hybrid_predict.audit.config import ARMS
    from hybrid_predict.audit.mechanisms import sentences
    from hybrid_predict.cli.screen import Screen
    from hybrid_predict.report.audit import COLUMNS, audit_rows, plain_finding
    from hybrid_predict.runs.evidence import FULL

    folder = output_folder(output)
    lengths = [1.0 if arm == FULL else 1.0 / config.speedup for arm in ARMS] * config.seeds
    print(f"{PROGRAM} audit: {len(lengths)} runs, written to {folder}", flush=True)
    need("The audit", ["mlflow"] if config.mlflow else [])

    def outcome(run: Any) -> str:
        return run["failure"] or f"{config.metric} {run['metric']:.5g}"

    with Screen(lengths, outcome) as screen:
        result = audit(make_run, config, folder, observer=screen, source=source)
    titles = [title.format(metric=config.metric) for title in COLUMNS]
    table = (titles, [row.values() for row in audit_rows(result.results)])
    notes = [*sentences(result.results["earned"]), *result.results["notes"]]
    shown = {**result.results, "notes": notes}
    conclusion = _conclusion(plain_finding(shown), shown["verdict"])
    screen.conclude(shown, conclusion, table, folder, mlflow=config.mlflow)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]


def _search(make_run: MakeRun, config: AuditConfig, source: dict[str, Any], output: str) -> int:
    from hybrid_predict.audit import search
    from hybrid_predict.audit.bisection import most_tests
    from hybrid_predict.audit.searching import RESULTS, WAYS
    from hybrid_predict.audit.verdict import percent, signed
    from hybrid_predict.cli.screen import Screen

    folder = output_folder(output)
    most = config.seeds * (1 + len(WAYS) * 2 * most_tests(len(config.speedups)))
    print(f"{PROGRAM} audit --search: at most {most} runs, written to {folder}", flush=True)

    def outcome(run: Any) -> str:
        return run["failure"] or f"{config.metric} {run['metric']:.5g}"

    with Screen([1.0] * most, outcome) as screen:
        result = search(make_run, config, folder, observer=screen, source=source)
    rows = [
        [
            tried.arm, f"{tried.speedup:g}", str(tried.verdict.seeds),
            "" if tried.verdict.saving is None else percent(tried.verdict.saving),
            "" if tried.verdict.contrast is None else signed(tried.verdict.contrast.mean),
            "keeps quality" if tried.passed else tried.verdict.outcome.value,
        ]
        for tried in result.tried
    ]  # fmt: skip
    titles = ["arm", "speedup", "seeds", "fewer full steps", "contrast", "finding"]
    screen.answer(titles, rows, result.line, folder / RESULTS, partial=result.partial)
    if result.partial:
        return INTERRUPTED
    return STATUS["verified" if any(result.best.values()) else "no saving"]


def _conclusion(finding: str, verdict: Mapping[str, Any]) -> dict[str, str]:
    """What the terminal shows: the finding and the verdict; statistics are for the report."""
    lines = [] if finding == verdict["headline"] else [f"Verdict: {verdict['headline']}."]
    tested = verdict["contrast"] is not None
    lines.append("The report has the tests and their bounds." if tested else verdict["text"])
    return {"headline": finding, "text": "\n".join(lines)}


COMMAND = Command(
    "Find out whether it saves full steps on your own model.",
    "Trains your own Lightning model in full, with a shortened schedule, with corrected updates, "
    "and with corrected updates and predicted steps, from the same seeds, and tests whether full "
    "steps are saved at equal quality. An audit that was stopped goes on where it was. Exit "
    "status: 0 verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage or failed "
    "training, 130 interrupted.",
    _add_options,
    _command,
)
