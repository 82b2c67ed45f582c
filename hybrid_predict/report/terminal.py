"""A run as lines of text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap

from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_facts import events, facts, known_losses, status
from hybrid_predict.report.run_log import RunLog

BLOCKS = "▁▂▃▄▅▆▇█"

NARROWEST = 40
"""Fewest columns that a run is drawn with."""


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a line of block characters; neighbours are averaged if there are too many.

    Args:
        values: Finite numbers in order.
        width: Most characters.
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
    """Return a run as lines of text.

    Args:
        log: Log of the run.
        width: Columns of the terminal; :data:`NARROWEST` at least are used.
        now: Present time, in seconds since 1970.
    """
    width = max(NARROWEST, width)
    filled = round(width * min(1.0, log.ledger.steps / log.steps))
    table = list(facts(log).items()) + [("event", event) for event in events(log)[-5:]]
    column = max(len(name) for name, _ in table) + 2
    shown = [f"{log.name}: {status(log, now)}", "", "█" * filled + "░" * (width - filled)]
    shown += [sparkline(known_losses(log), width), ""]
    shown += [f"{name:{column}}{text}" for name, text in table]
    wrapped = [wrap(printable(x), width, subsequent_indent=" " * column) or [""] for x in shown]
    return [line for each in wrapped for line in each]
