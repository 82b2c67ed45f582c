"""``hybrid-predict audit`` of a file, and ``demo``, which audits that of the package."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_predict.cli.program import INTERRUPTED, add_command, need

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome."""

_DEMO = """\
A small GPT is trained from the same weights in four ways: in full; with a shortened schedule;
the same with corrected updates; and in full with corrected updates and predicted steps, which
replace full ones. What counts is the loss at the end, and how many full steps that took."""


def add_audit(commands: Any) -> None:
    """Add ``audit`` to the commands of a parser."""
    text = (
        "Find out whether it saves full steps on your own model. Trains your Lightning model in "
        "full, with a shortened schedule, with corrected updates, and with corrected updates and "
        "predicted steps, from the same seeds, and tests whether full steps are saved at equal "
        "quality. An audit that was stopped continues with the same command. Exit status: 0 "
        "verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage or failed training, "
        "130 interrupted."
    )
    parser = add_command(commands, "audit", _run, text)
    text = "YAML file with model, data and trainer as for LightningCLI, and a section audit."
    parser.add_argument("file", metavar="FILE", help=text)
    _add_options(parser, "hybrid-predict-audit")


def add_demo(commands: Any) -> None:
    """Add ``demo`` to the commands of a parser."""
    text = (
        "Train a small GPT with and without the callback. Audits it on the source text of Python's "
        "standard library, without a network, and writes a report, the results and an MLflow "
        "database into the output folder. Started again, it skips the runs that are finished. "
        "Exit status: 0 whatever it finds, others as audit."
    )
    parser = add_command(commands, "demo", _run_demo, text)
    parser.set_defaults(file=Path(__file__).parents[1] / "demo" / "audit.yaml")
    _add_options(parser, "hybrid-predict-demo")


def _add_options(parser: ArgumentParser, folder: str) -> None:
    add = parser.add_argument
    add("--plan", action="store_true", help="Only print what would be trained and for how long.")
    text = (
        "Instead of one verdict, find the largest speedup that keeps quality, out of the file's "
        "audit.speedups: with corrected updates alone, and with predicted steps."
    )
    add("--search", action="store_true", help=text)
    add("--seeds", type=int, metavar="N", help="Number of paired seeds.")
    add("--output-dir", metavar="FOLDER", default=folder, help=f"Folder for all files ({folder}).")
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _run_demo(options: Namespace) -> int:
    print(_DEMO, flush=True)
    status = _run(options)
    return 0 if status in STATUS.values() else status


def _run(options: Namespace) -> int:
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit import plan_audit
    from hybrid_predict.audit.file import read_audit
    from hybrid_predict.cli.screen import show_audit, show_search
    from hybrid_predict.runs.runtime import writable_folder

    make_run, config, source = read_audit(options.file)
    if options.seeds is not None:
        config = replace(config, seeds=options.seeds)
    if options.no_mlflow or options.search:
        config = replace(config, mlflow=False)
    if options.plan:
        place = options.output_dir
        print(plan_audit(make_run, config, place, source=source, search=options.search))
        return 0
    folder = writable_folder(options.output_dir, "--output-dir")
    need("The audit", ["mlflow"] if config.mlflow else [])
    show: Any = show_search if options.search else show_audit
    result = show(config, folder, make_run=make_run, source=source)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]
