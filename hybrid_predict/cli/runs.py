"""``hybrid-predict watch`` and ``report``: what the log of a run holds."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from time import sleep, time
from typing import Any

from hybrid_predict.cli.program import PROGRAM, Command, need
from hybrid_predict.runs.files import given_path, printable, replace_text

_PAGE = "hybrid_predict.html"

_REFRESH = 1.0
"""Seconds between two looks at the log."""

_RUN = "Folder of a run's logger, or one above it; its newest run log is read."


def _watch(options: Namespace) -> int:
    need("The view", ["cli"])
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hybrid_predict.runs.facts import lines
    from hybrid_predict.runs.log import find_log, read_log

    path = find_log(options.run)
    log = read_log(path)
    console = Console(highlight=False, markup=False)
    if console.is_terminal and log.end is None:
        # Ctrl-C ends the view only: the run is another process.
        view = Live(console=console, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), view as live:
            while log.end is None:
                shown = [*lines(log, console.width, time()), "", "Ctrl-C leaves the view."]
                live.update(Text("\n".join(shown)), refresh=True)
                sleep(_REFRESH)
                log = read_log(path)
    for line in lines(log, console.width, time()):
        console.print(line)
    console.print(f"\nPage:   {PROGRAM} report {printable(log.place)}", soft_wrap=True)
    return 0


def _report_options(add: Any) -> None:
    add("runs", nargs="+", metavar="RUN", help=_RUN)
    text = f"File to write ({_PAGE}, beside the run log; in this folder for several runs)."
    add("--output", metavar="FILE", help=text)


def _report(options: Namespace) -> int:
    need("The report", ["cli"])
    from hybrid_predict.runs.facts import ONE_RUN, finding, proof
    from hybrid_predict.runs.log import find_log, read_log
    from hybrid_predict.runs.page import run_page

    logs = [read_log(find_log(name)) for name in options.runs]
    path = logs[0].path.with_suffix(".html") if len(logs) == 1 else Path(_PAGE)
    if options.output is not None:
        path = given_path("--output", options.output)
    replace_text(path, run_page(logs), "--output")
    for log in logs:
        print(f"{printable(log.name)}: {finding(log)}")
    print(f"\n{ONE_RUN}\nProof:    {proof(logs)}\nReport:   {printable(path)}")
    return 0


WATCH = Command(
    "Watch a run in the terminal.",
    "Shows a run that was trained with the callback, while it trains or afterwards: loss, full and "
    "predicted steps, skill, saving, overhead, events. It only reads the run's log, so the run "
    "goes on when you leave with Ctrl-C.",
    lambda add: add("run", metavar="RUN", help=_RUN),
    _watch,
)

REPORT = Command(
    "Write a page about runs: their cost, and what to do next.",
    "Writes one HTML page about runs that were trained with the callback, finished or not: where "
    "steps and seconds went, skill, events, configuration. Several runs are shown side by side. "
    "Reads the run log that the callback writes into the folder of a TensorBoard or CSV logger. "
    f"See also: {PROGRAM} watch.",
    _report_options,
    _report,
)
