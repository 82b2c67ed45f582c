"""``hybrid-predict watch``: show a run in the terminal, while it trains or afterwards."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from time import sleep, time
from typing import Any

from hybrid_predict.cli.options import need, under_way
from hybrid_predict.cli.program import Command
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import find_log, read_log
from hybrid_predict.report.terminal import lines

_REFRESH = 1.0


def _add_options(add: Any) -> None:
    add(
        "run",
        metavar="RUN",
        help="Folder of a run's logger, or one above it; its newest run log is read.",
    )


def _run(options: Namespace) -> int:
    under_way("reading")
    need("The view", ["cli"])
    from rich.console import Console

    path = find_log(options.run)
    console = Console(highlight=False, markup=False)
    if console.is_terminal and read_log(path).end is None:
        _follow(path, console)
    log = read_log(path)
    for line in lines(log, console.width, time()):
        console.print(line)
    console.print(f"\nPage:   hybrid-predict report {printable(log.place)}", soft_wrap=True)
    return 0


def _follow(path: Path, console: Any) -> None:
    """Show the run until it ends, or until the user leaves."""
    from rich.live import Live
    from rich.text import Text

    # Ctrl-C ends the view only: the run is another process.
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while (log := read_log(path)).end is None:
            shown = [*lines(log, console.width, time()), "", "Ctrl-C leaves the view."]
            live.update(Text("\n".join(shown)), refresh=True)
            sleep(_REFRESH)


COMMAND = Command(
    "Watch a run in the terminal.",
    "Shows a run that was trained with the callback, while it trains or afterwards: loss, full and "
    "predicted steps, skill, saving, overhead, events. It only reads the run's log, so the run "
    "goes on when you leave with Ctrl-C.",
    _add_options,
    _run,
)
