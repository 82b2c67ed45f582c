"""``hybrid-predict watch`` and ``report``: what the log of a run holds."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.program import add_command, need
from hybrid_predict.runs.facts import ONE_RUN, PROOF, events, facts
from hybrid_predict.runs.files import given_path, replace_text
from hybrid_predict.runs.log import RunLog, find_log, read_log
from hybrid_predict.text import printable

if TYPE_CHECKING:
    from rich.table import Table

_PAGE = "hybrid_predict.html"

_RUN = "Folder of a run's logger, or one above it; its newest run log is read."


def add_watch(commands: Any) -> None:
    """Add ``watch`` to the commands of a parser."""
    text = (
        "Watch a run in the terminal. Prints what report says of a run with the callback, again "
        "each second while it trains. It only reads the run's log, so the run goes on when you "
        "leave with Ctrl-C."
    )
    parser = add_command(commands, "watch", _watch, text)
    parser.add_argument("log", metavar="RUN", help=_RUN)


def _watch(options: Namespace) -> int:
    need("The view", ["cli"])
    from rich.live import Live

    path = find_log(options.log)
    log = read_log(path)
    with suppress(KeyboardInterrupt), Live(text_of(log), auto_refresh=False) as live:
        while log.end is None and live.console.is_terminal:
            sleep(1.0)
            log = read_log(path)
            live.update(text_of(log), refresh=True)
    return 0


def add_report(commands: Any) -> None:
    """Add ``report`` to the commands of a parser."""
    text = (
        "Print what runs have cost, and write a page about them. Shows what runs with the "
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
    from rich.console import Console

    from hybrid_predict.runs.page import run_page

    places = [find_log(name) for name in options.logs]
    logs = [read_log(place) for place in places]
    path = places[0].with_suffix(".html") if len(logs) == 1 else Path(_PAGE)
    if options.output is not None:
        path = given_path(options.output)
    replace_text(path, run_page(logs), "--output")
    for log in logs:
        Console().print(text_of(log))
    print(f"\n{ONE_RUN}\nProof:    {PROOF}\nReport:   {printable(path)}")
    return 0


def text_of(log: RunLog) -> Table:
    """Return the facts of a run and its last events as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    last = [("event", event) for event in events(log)[-5:]]
    for name, text in [("run", log.name), *facts(log).items(), *last]:
        table.add_row(Text(printable(name)), Text(printable(text)))
    return table
