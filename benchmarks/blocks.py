"""Fills marked blocks of Markdown pages from results files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping

WIDTH = 120
"""Most characters in a line of a page; rows of tables may be longer."""

_BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.S)


def names(page: str) -> list[str]:
    """Return the names of the blocks of a page."""
    return [found[2] for found in _BLOCK.finditer(page)]


def fill(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with filled blocks.

    A block is the text between ``<!-- results: NAME -->`` and ``<!-- end -->``.
    """

    def replaced(found: re.Match[str]) -> str:
        make = blocks.get(found[2])
        return found[0] if make is None else f"{found[1]}{wrapped(make())}\n{found[3]}"

    return _BLOCK.sub(replaced, page)


def wrapped(text: str) -> str:
    """Wrap long lines of Markdown; rows of tables stay whole, list items are indented."""
    return "\n".join(map(_wrapped_line, text.split("\n")))


def _wrapped_line(line: str) -> str:
    if line.startswith("|"):
        return line
    indent = "  " * line.startswith("- ")
    return textwrap.fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
