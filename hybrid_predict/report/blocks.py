"""Fills marked blocks of Markdown pages, so that a number stands in one place only."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping

WIDTH = 120
"""Characters of a line of a page; rows of tables are as long as they need to be."""

_BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.S)


def names(page: str) -> list[str]:
    """Names of a page's blocks."""
    return [found[2] for found in _BLOCK.finditer(page)]


def fill(page: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """A page with the blocks that are known filled in.

    A block is what stands between ``<!-- results: NAME -->`` and ``<!-- end -->``.

    Args:
        page: Markdown text.
        blocks: What makes a block's text, by its name; blocks of other names stay as they are.
    """

    def replaced(found: re.Match[str]) -> str:
        make = blocks.get(found[2])
        return found[0] if make is None else f"{found[1]}{wrapped(make())}\n{found[3]}"

    return _BLOCK.sub(replaced, page)


def wrapped(text: str) -> str:
    """Markdown whose long lines are wrapped; rows of tables stay, list items are indented."""
    return "\n".join(map(_wrapped_line, text.split("\n")))


def _wrapped_line(line: str) -> str:
    if line.startswith("|"):
        return line
    indent = "  " * line.startswith("- ")
    return textwrap.fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
