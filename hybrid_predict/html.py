"""HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def table(title: str, rows: Mapping[str, str]) -> str:
    """Return an HTML table of names and values with a caption; all text is escaped."""
    cell = '<{0} style="text-align:left">{1}</{0}>'
    lines = [
        f"<tr>{cell.format('th', escape(name))}{cell.format('td', escape(value))}</tr>"
        for name, value in rows.items()
    ]
    return f"<table><caption>{escape(title)}</caption><tbody>{''.join(lines)}</tbody></table>"
