"""``hybrid-predict watch`` and ``report``: what the log of a run holds."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from time import sleep, time
from typing import Any

from hybrid_predict.cli.program import PROGRAM, add_command, need
from hybrid_predict.runs.facts import ONE_RUN, PROOF, finding, lines
from hybrid_predict.runs.files import given_path, printable, replace_text
from hybrid_predict.runs.log import find_log, read_log

_PAGE = "hybrid_predict.html"

_RUN = "Folder of a run's logger, or one above it; its newest run log is read."


def add_watch(commands: Any) -> None:
    """Add ``watch`` to the commands of a parser."""
    text = (
        "Watch a run in the terminal. Shows loss, full and predicted steps, skill, saving and "
        "events of a run with the callback, while it trains or afterwards. It only reads the run's "
        "log, so the run goes on when you leave with Ctrl-C."
    )
    parser = add_command(commands, "watch", _watch, text)
    parser.add_argument("log", metavar="RUN", help=_RUN)


def _watch(options: Namespace) -> int:
    need("The view", ["cli"])
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    path = find_log(options.log)
    log = read_log(path)
    console = Console()
    if console.is_terminal and log.end is None:
        # Ctrl-C ends the view only: the run is another process.
        view = Live(console=console, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), view as live:
            while log.end is None:
                shown = [*lines(log, console.width, time()), "", "Ctrl-C leaves the view."]
                live.update(Text("\n".join(shown)), refresh=True)
                sleep(1.0)
                log = read_log(path)
    for line in lines(log, console.width, time()):
        print(line)
    print(f"\nPage:   {PROGRAM} report {printable(path)}")
    return 0


def add_report(commands: Any) -> None:
    """Add ``report`` to the commands of a parser."""
    text = (
        "Write a page about runs: their cost, and what to do next. Shows what runs with the "
        "callback have spent, skill, events and configuration, finished or not, several side by "
        "side. Reads the run log that the callback writes into the folder of a TensorBoard or CSV "
        "logger."
    )
    parser = add_command(commands, "report", _report, text)
    parser.add_argument("logs", nargs="+", metavar="RUN", help=_RUN)
    text = f"File to write ({_PAGE}, beside the run log; in this folder for several runs)."
    parser.add_argument("--output", metavar="FILE", help=text)


def _report(options: Namespace) -> int:
    need("The report", ["cli"])
    from hybrid_predict.runs.page import run_page

    logs = [read_log(find_log(name)) for name in options.logs]
    path = logs[0].path.with_suffix(".html") if len(logs) == 1 else Path(_PAGE)
    if options.output is not None:
        path = given_path("--output", options.output)
    replace_text(path, run_page(logs), "--output")
    for log in logs:
        print(f"{printable(log.name)}: {finding(log)}")
    print(f"\n{ONE_RUN}\nProof:    {PROOF}\nReport:   {printable(path)}")
    return 0
