"""The commands of ``hybrid-predict``; what ``--help`` prints is their docstring."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from time import sleep
from typing import Any

from hybrid_predict import __version__
from hybrid_predict.cli.program import (
    EXTRAS,
    INTERRUPTED,
    PROGRAM,
    add_command,
    missing,
    need,
    run_program,
)
from hybrid_predict.errors import install_line
from hybrid_predict.runs.files import given_path, printable, replace_text
from hybrid_predict.runs.log import (
    ONE_RUN,
    PROOF,
    RunLog,
    advice,
    events,
    facts,
    find_logs,
    read_log,
)
from hybrid_predict.runs.runtime import environment, writable_folder

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses of an audit by outcome."""

REFUSED = 4
"""Exit status of doctor where the callback refuses the set-up, or would do nothing."""

_DEMO = """\
A small GPT is trained from the same weights in four ways: in full; with a
shortened schedule; the same with corrected updates; and in full with corrected
updates and predicted steps, which replace full ones. What counts is the loss
at the end, val_loss (lower is better), and how many full steps that took."""

_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|%)(?:\W|$))")
"""The space between a number and its unit, where no line ends."""

_PAGE = "hybrid_predict.html"
_CLEAR = "\x1b[H\x1b[2J"

Rows = list[tuple[str, str]]  # titles and texts


def main(argv: list[str] | None = None) -> int:
    """Run a command; see :func:`hybrid_predict.cli.program.run_program`."""
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Train neural networks in fewer full steps: corrected updates, and predicted "
        "steps between them.",
        epilog=f"{PROGRAM} COMMAND --help prints the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    _add_commands(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    return run_program(parser, argv)


def _add_commands(commands: Any) -> None:
    parser = _add(commands, demo)
    parser.set_defaults(file=Path(__file__).parents[1] / "demo" / "audit.yaml")
    _add_options(parser, "hybrid-predict-demo")
    parser = _add(commands, doctor)
    text = (
        "FILE:FUNCTION, such as train.py:build, or a YAML file as for the audit. The function "
        "takes no arguments and returns trainer, model and training data of Lightning, then "
        "those for validation (none if the model has its own), or the Trainer of Hugging Face."
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=text)
    text = 'Speedup to plan for, a number or "auto" (that of the file or its callback, or 1.5).'
    parser.add_argument("--speedup", type=_speedup, metavar="X", help=text)
    place = "Folder of a run's logger, or one above it; its newest run log is read."
    _add(commands, watch).add_argument("log", metavar="RUN", help=place)
    parser = _add(commands, report)
    parser.add_argument("log", metavar="RUN", help=place)
    text = f"File to write ({_PAGE} in the current folder)."
    parser.add_argument("--output", metavar="FILE", default=_PAGE, help=text)
    parser = _add(commands, audit)
    text = "YAML file with model, data and trainer as for LightningCLI, and a section audit."
    parser.add_argument("file", metavar="FILE", help=text)
    _add_options(parser, "hybrid-predict-audit")


def _add(commands: Any, run: Callable[[Namespace], int]) -> ArgumentParser:
    return add_command(commands, run.__name__, run, run.__doc__ or "")


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


def _speedup(text: str) -> float | str:
    with suppress(ValueError):
        return float(text)
    return text  # the configuration refuses it, or it is auto


def demo(options: Namespace) -> int:
    """Train a small GPT with and without the callback.

    Audits it on the source text of Python's standard library, without a network, and writes a
    report, the results and an MLflow database into the output folder. Started again, it skips the
    runs that are finished. Exit status: 0 whatever it finds, others as audit.
    """
    print(_DEMO, flush=True)
    status = audit(options)
    return 0 if status in STATUS.values() else status


def audit(options: Namespace) -> int:
    """Find out whether it saves full steps on your own model.

    Trains your Lightning model in full, with a shortened schedule, with corrected updates, and with
    corrected updates and predicted steps, from the same seeds, and tests whether full steps are
    saved at equal quality. An audit that was stopped continues with the same command. Exit status:
    0 verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage or failed training, 130
    interrupted.
    """
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit import plan_audit
    from hybrid_predict.audit.file import read_audit
    from hybrid_predict.cli.screen import show_audit, show_search

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


def doctor(options: Namespace) -> int:
    """Print what works with your Trainer and model, or without CONFIG what is installed.

    Trains a few full steps of your model and prints what to expect, how many weights would be
    corrected, how long a full step and the run would take, what to change, and the line to paste.
    Exit status: 0 if it works, 4 if the callback refuses the set-up or would leave the training as
    it is, 2 for bad usage.
    """
    if options.config is None:
        text = "hybrid-predict doctor CONFIG prints what works with your Trainer and model."
        print(_told([*_installed(), ("next", text)]))
        return 0
    file = options.config.endswith((".yaml", ".yml"))
    need("The examination", ["lightning", "cli"] if file else [])
    from hybrid_predict.doctor.examination import examine

    works, findings = examine(options.config, options.speedup)
    print(_told(findings))
    return 0 if works else REFUSED


def _installed() -> Rows:
    rows = [(name, str(value)) for name, value in environment().items() if value is not None]
    lacking = {extra: ", ".join(missing(extra)) for extra in EXTRAS}
    rows.append(("extras", ", ".join(extra for extra in EXTRAS if not lacking[extra]) or "none"))
    for extra, modules in lacking.items():
        if modules:
            rows.append((f"extra {extra}", f"missing {modules}: {install_line(extra)}"))
    return rows


def _told(rows: Rows) -> str:
    """Return titles and texts in two columns; lines to paste stay whole."""
    width = min(80, get_terminal_size().columns)
    shown = TextWrapper(width, "", " " * 18, break_long_words=False, break_on_hyphens=False)
    told = [_UNIT.sub("\N{NO-BREAK SPACE}", printable(text)) for _, text in rows]
    lines = [
        shown.fill(f"{printable(name):18}{text}")
        for (name, _), text in zip(rows, told, strict=True)
    ]
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def watch(options: Namespace) -> int:
    """Watch a run in the terminal.

    Prints what report says of a run with the callback, again each second while it trains. It only
    reads the run's log, so the run goes on when you leave with Ctrl-C.
    """
    path = _chosen(options.log)
    with suppress(KeyboardInterrupt):
        while True:
            log = read_log(path)
            print(f"{_CLEAR if sys.stdout.isatty() else ''}{_facts(log)}", flush=True)
            if log.end is not None or not sys.stdout.isatty():
                break
            sleep(1.0)
    return 0


def report(options: Namespace) -> int:
    """Print what a run has cost, and write a page about it.

    Shows what a run with the callback has spent, skill, events and configuration, finished or not.
    Reads the run log that the callback writes into the folder of a TensorBoard or CSV logger.
    """
    need("The report", ["cli"])
    from hybrid_predict.runs.page import run_page

    log = read_log(_chosen(options.log))
    path = replace_text(given_path(options.output), run_page(log), "--output")
    notes = _told([("one run", ONE_RUN), ("proof", PROOF)])
    print(f"{_facts(log)}\n\n{notes}\n{'page':18}{printable(path)}")
    return 0


def _chosen(name: str) -> Path:
    """Return the newest run log in a folder, and tell of others."""
    newest, *others = find_logs(name)
    if others:
        text = (
            f"the newest of {len(others) + 1} runs; name the folder of another to see it, such as"
        )
        print(printable(f"{newest.parent} is {text} {others[0].parent}"))
    return newest


def _facts(log: RunLog) -> str:
    last = [("event", event) for event in events(log)[-5:]]
    told = _told([("run", log.name), *facts(log).items(), *last])
    lines = "".join(f"\n    {line}" for line in advice(log))
    return f"{told}\nwhat helps:{lines}" if lines else told
