"""Fills marked blocks of Markdown pages, so that a number stands in one place only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

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
        return found[0] if make is None else f"{found[1]}{make()}\n{found[3]}"

    return _BLOCK.sub(replaced, page)
