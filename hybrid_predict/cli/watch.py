"""``hybrid-predict watch``: show a run in the terminal, while it trains or afterwards."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep, time
from typing import Any

from hybrid_predict.cli.options import PROGRAM, need, under_way
from hybrid_predict.cli.program import Command
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import RunLog, find_log, read_log
from hybrid_predict.report.stop_request import ask
from hybrid_predict.report.terminal import lines

_REFRESH = 1.0

_KEYS = "q or Ctrl-C leaves the view; s asks the run to stop."
_LEAVE = "Ctrl-C leaves the view."
_SURE = "Stop it after its next full step, with a checkpoint? y or n"


def _add_options(add: Any) -> None:
    add(
        "run",
        metavar="RUN",
        help="Folder of a run's logger, or one above it; its newest event log is read.",
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
    where = printable(log.place)
    console.print(f"\nPage:   hybrid-predict report {where}", soft_wrap=True)
    return 0


def _follow(path: Path, console: Any) -> None:
    """Show the run until it ends, or until the user leaves."""
    from rich.live import Live
    from rich.text import Text

    with _keys() as pressed:
        log, note = read_log(path), _LEAVE if pressed is _waited else _KEYS

        def drawn() -> Text:
            return Text("\n".join([*lines(log, console.width, time()), "", note]))

        with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:
            try:
                while log.end is None:
                    key = pressed(_REFRESH)
                    if key == "q":
                        return
                    note = _answer(note, key, log)
                    log = read_log(path)
                    live.update(drawn(), refresh=True)
            except KeyboardInterrupt:
                pass  # the run is another process and goes on


def _answer(note: str, key: str, log: RunLog) -> str:
    """Return the last line to show after a key; y after s asks the run to stop."""
    if note == _SURE and key == "y":
        try:
            ask(log)
        except ConfigError as error:
            return str(error)
        return "Asked. The run looks for requests about once a second. q leaves the view."
    if key == "s":
        return _SURE
    return _KEYS if note == _SURE and key else note


def _waited(seconds: float) -> str:
    sleep(seconds)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key for some seconds and returns it, or ``""``."""
    try:
        import select
        import termios
        import tty
    except ImportError:
        terminal = False
    else:
        terminal = sys.stdin is not None and sys.stdin.isatty()
    if not terminal:  # Ctrl-C still leaves
        yield _waited
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        if not ready:
            return ""
        return (os.read(number, 1) or b"q").decode("latin-1").lower()  # closed input gives nothing

    tty.setcbreak(number)
    try:
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


COMMAND = Command(
    "Watch a run in the terminal.",
    "Shows a run that was trained with the callback, while it trains or afterwards: loss, full and "
    "predicted steps, skill, saving, overhead, events. It only reads the run's event log, so the "
    "run goes on when you leave with q or Ctrl-C. The key s, then y, asks the run to stop with a "
    f"checkpoint, as {PROGRAM} stop does.",
    _add_options,
    _run,
)
