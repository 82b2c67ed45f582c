"""Tables of rows, and what their cells share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.speedups import Speedup

NONE = "n/a"


def view(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a Markdown table of rows, whose cells are by the titles of the columns."""
    kept = list(rows)
    if not kept:
        return "Not measured yet."
    return markdown(list(kept[0]), [list(row.values()) for row in kept])


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def speedup_text(speedup: Speedup | None) -> str:
    """Format a speedup with its interval."""
    if speedup is None:
        return NONE
    interval = "" if speedup.low is None else f" [{speedup.low:.2f}, {speedup.high:.2f}]"
    return f"{speedup.bound}{speedup.value:.2f}{interval}"
