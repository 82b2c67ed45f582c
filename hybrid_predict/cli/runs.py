"""``hybrid-predict watch`` and ``report``: what the log of a run holds."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from time import sleep, time
from typing import Any

from hybrid_predict.cli.program import PROGRAM, Command, need, under_way
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import NAME, find_log, read_log

PAGE = Path(NAME).with_suffix(".html").name

_REFRESH = 1.0

_RUN = {"metavar": "RUN", "help": "Folder of a run's logger, or one above it; its newest run log "
        "is read."}  # fmt: skip


def _watch(options: Namespace) -> int:
    under_way("reading")
    need("The view", ["cli"])
    from rich.console import Console

    from hybrid_predict.report.run_facts import lines

    path = find_log(options.run)
    console = Console(highlight=False, markup=False)
    if console.is_terminal and read_log(path).end is None:
        _follow(path, console)
    log = read_log(path)
    for line in lines(log, console.width, time()):
        console.print(line)
    console.print(f"\nPage:   {PROGRAM} report {printable(log.place)}", soft_wrap=True)
    return 0


def _follow(path: Path, console: Any) -> None:
    """Show the run until it ends, or until the user leaves."""
    from rich.live import Live
    from rich.text import Text

    from hybrid_predict.report.run_facts import lines

    # Ctrl-C ends the view only: the run is another process.
    view = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), view as live:
        while (log := read_log(path)).end is None:
            shown = [*lines(log, console.width, time()), "", "Ctrl-C leaves the view."]
            live.update(Text("\n".join(shown)), refresh=True)
            sleep(_REFRESH)


def _report_options(add: Any) -> None:
    add("runs", nargs="+", **_RUN)
    text = f"File to write ({PAGE}, beside the run log; in this folder for several runs)."
    add("--output", metavar="FILE", help=text)


def _report(options: Namespace) -> int:
    under_way("reading")
    need("The report", ["cli"])
    from hybrid_predict.report.pages import proof, run_page
    from hybrid_predict.report.run_facts import ONE_RUN, finding
    from hybrid_predict.runs.files import given_path, replace_text

    logs = [read_log(find_log(name)) for name in options.runs]
    path = logs[0].path.with_suffix(".html") if len(logs) == 1 else Path(PAGE)
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
    lambda add: add("run", **_RUN),
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
