"""The compatibility page's tables, made from the rows."""

from __future__ import annotations

from compatibility.rows import NOT_APPLICABLE, WORKS, Row, all_rows


def outcome(row: Row) -> str:
    """What the page says of a row: works, refused with an error, or not applicable."""
    return row.outcome if row.outcome in (WORKS, NOT_APPLICABLE) else f"refused: `{row.outcome}`"


def table(group: str) -> str:
    """The table of one group, in Markdown."""
    lines = ["| set-up | what you write | outcome | note |", "|---|---|---|---|"]
    for row in all_rows():
        if row.group == group:
            lines.append(f"| {row.name} | {row.does} | {outcome(row)} | {row.note} |")
    return "\n".join(lines)


def summary() -> str:
    """How many rows there are, by outcome."""
    outcomes = [outcome(row).split(":")[0] for row in all_rows()]
    counts = {kind: outcomes.count(kind) for kind in ("works", "refused", "not applicable")}
    parts = [f"{count} {kind}" for kind, count in counts.items()]
    return f"{len(outcomes)} rows: {', '.join(parts)}."
