"""``hybrid-predict audit``: whether full steps are saved on a model of your own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

from hybrid_predict.cli.program import INTERRUPTED, add_command, need

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome."""


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
    text = "Only print what would be trained and for how long."
    parser.add_argument("--plan", action="store_true", help=text)
    text = (
        "Instead of one verdict, find the largest speedup that keeps quality, out of the file's "
        "audit.speedups: with corrected updates alone, and with predicted steps."
    )
    parser.add_argument("--search", action="store_true", help=text)
    add_shared(parser, "hybrid-predict-audit")


def add_shared(parser: ArgumentParser, folder: str) -> None:
    """Add the options of every command that audits, and writes into a folder."""
    add = parser.add_argument
    add("--seeds", type=int, metavar="N", help="Number of paired seeds.")
    add("--output-dir", metavar="FOLDER", default=folder, help=f"Folder for all files ({folder}).")
    add("--overwrite", action="store_true", help="Train all runs again.")
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _run(options: Namespace) -> int:
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit import plan_audit, plan_search
    from hybrid_predict.audit.file import importable, read_audit
    from hybrid_predict.cli.screen import show_audit, show_search
    from hybrid_predict.runs.runtime import writable_folder

    with importable():
        make_run, config, source = read_audit(options.file)
        if options.seeds is not None:
            config = replace(config, seeds=options.seeds)
        if options.no_mlflow or options.search:
            config = replace(config, mlflow=False)
        if options.plan and options.search:
            print(plan_search(make_run, config))
            return 0
        if options.plan:
            done = None if options.overwrite else options.output_dir
            print(plan_audit(make_run, config, done, source=source))
            return 0
        folder = writable_folder(options.output_dir, "--output-dir")
        need("The audit", ["mlflow"] if config.mlflow else [])
        show: Any = show_search if options.search else show_audit
        given = {"make_run": make_run, "source": source, "overwrite": options.overwrite}
        result = show(config, folder, **given)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]
