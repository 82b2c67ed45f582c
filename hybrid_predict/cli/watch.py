"""``hybrid-predict watch``: a run in the terminal, while it trains or afterwards."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from time import sleep, time
from typing import Any

from hybrid_predict.accounts.ledger import SavingsLedger, duration, percent
from hybrid_predict.cli.options import need
from hybrid_predict.cli.program import Command
from hybrid_predict.report.run_log import RunLog, find_log, read_log

BLOCKS = "▁▂▃▄▅▆▇█"

EVENTS = 5
"""Events that are shown, the latest ones."""

_REFRESH = 1.0


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as a line of blocks, averaged where there are more of them than characters.

    Args:
        values: Finite numbers in order.
        width: Characters at most.
    """
    count = min(width, len(values))
    if not count:
        return ""
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    parts = [values[a:b] for a, b in pairwise(edges)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def lines(log: RunLog, width: int, now: float) -> list[str]:
    """A run as lines of text.

    Args:
        log: What is known of it.
        width: Columns of the terminal, at least 40.
        now: Seconds since 1970.
    """
    ledger, plan = log.ledger, log.start["plan"]
    losses = [row["loss"] for row in log.rows if row["loss"] is not None]
    shown = [f"{log.name}: {_status(log, now)}", "", _bar(ledger.steps, log.steps, width)]
    if losses:
        ends = f" {losses[0]:.4g} to {losses[-1]:.4g}"
        shown.append(f"loss    {sparkline(losses, width - 8 - len(ends))}{ends}")
    phase = f", {log.rows[-1]['phase']}" if log.rows and log.end is None else ""
    shown += [
        f"steps   {ledger.full_steps:,} full + {ledger.predicted_steps:,} predicted "
        f"({plan['predicted']:,} planned), {ledger.undone_steps:,} undone{phase}",
        f"saving  {_saving(ledger)}",
    ]
    for kind, skill in ledger.skills.items():
        bound = f"at least {skill['lower']:.2f}, " if skill["windows"] > 1 else ""
        shown.append(f"skill   {kind} {skill['mean']:.2f} ({bound}{skill['windows']:g} windows)")
    if not ledger.skills:
        shown.append("skill   not known yet")
    for event in log.events[-EVENTS:]:
        shown.append(f"event   full step {event['full_steps']:,}: {event['reason']}")
    wrapped = [wrap(line, width, subsequent_indent=" " * 8) or [""] for line in shown]
    return [line for each in wrapped for line in each]


def _status(log: RunLog, now: float) -> str:
    silent = now - log.seen
    if log.end is None and silent > 60:
        return f"nothing written for {duration(silent)}; it may have been killed"
    return log.status


def _bar(done: int, total: int, width: int) -> str:
    note = f" {done:,}/{total:,} steps"
    room = max(10, width - len(note))
    filled = round(room * min(1.0, done / total))
    return "█" * filled + "░" * (room - filled) + note


def _saving(ledger: SavingsLedger) -> str:
    parts = [f"{percent(ledger.saved_steps_fraction)} fewer full steps"]
    if ledger.predicted_steps:
        saved = ledger.estimated_seconds_saved
        parts.append(f"about {duration(abs(saved))} {'saved' if saved > 0 else 'longer'}")
    return ", ".join([*parts, f"overhead {percent(ledger.overhead_fraction)}"])


def _add_options(add: Any) -> None:
    add(
        "run",
        metavar="RUN",
        help="Folder of a run's logger, or any above it: the newest event log below it is read.",
    )


def _run(options: Namespace) -> int:
    need("The view", ["cli"])
    from rich.console import Console

    path = find_log(options.run)
    console = Console(highlight=False, markup=False)
    if console.is_terminal and read_log(path).end is None:
        _follow(path, console)
    for line in lines(read_log(path), console.width, time()):
        console.print(line)
    console.print(f"\nPage:   hybrid-predict report {path.parent}", soft_wrap=True)
    return 0


def _follow(path: Path, console: Any) -> None:
    """Show the run until it ends, or until the user leaves."""
    from rich.live import Live
    from rich.text import Text

    def drawn() -> tuple[RunLog, Text]:
        log = read_log(path)
        text = "\n".join([*lines(log, console.width, time()), "", "q or Ctrl-C leaves the view."])
        return log, Text(text)

    log, text = drawn()
    with (
        _keys() as pressed,
        Live(text, console=console, screen=True, auto_refresh=False) as live,
    ):
        try:
            while log.end is None and not pressed(_REFRESH):
                log, text = drawn()
                live.update(text, refresh=True)
        except KeyboardInterrupt:
            pass  # the run is another process and goes on


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds and tells whether q was pressed meanwhile."""
    try:
        import select
        import termios
        import tty
    except ImportError:
        terminal = False
    else:
        terminal = sys.stdin is not None and sys.stdin.isatty()
    if not terminal:  # Ctrl-C still leaves
        yield lambda seconds: sleep(seconds)
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready) and sys.stdin.read(1).lower() == "q"

    tty.setcbreak(number)
    try:
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


COMMAND = Command(
    "Watch a run in the terminal.",
    "Shows a run that was trained with the callback, while it trains or afterwards: loss, full and "
    "predicted steps, skill, saving, overhead, events. It only reads the run's event log, so "
    "leaving it, by q or Ctrl-C, disturbs nothing.",
    _add_options,
    _run,
)
