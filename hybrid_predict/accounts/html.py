"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def table(title: str, rows: Mapping[str, str]) -> str:
    """An HTML table of names and values below a title; nothing but HTML, and safe for any text."""
    cell = '<{0} style="text-align:left">{1}</{0}>'
    lines = [
        f"<tr>{cell.format('th', escape(name))}{cell.format('td', escape(value))}</tr>"
        for name, value in rows.items()
    ]
    return f"<table><caption>{escape(title)}</caption><tbody>{''.join(lines)}</tbody></table>"
