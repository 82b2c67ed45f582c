"""Fills blocks of pages, between marks, with the committed results, and draws their figures."""

from __future__ import annotations

import hashlib
import re
import textwrap
from pathlib import Path

from benchmarks import RESULTS
from benchmarks.registry import STUDIES, Blocks
from benchmarks.studies import suites

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions"

WIDTH = 120  # most characters in a line of a page; rows of tables may be longer

_BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.S)

PAGES = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if DECISIONS not in page.parents and _BLOCK.search(page.read_text())
)

_CONTENTS = {name: study.read(RESULTS) for name, study in STUDIES.items()}

BLOCKS: Blocks = suites.across()
for _name, _content in _CONTENTS.items():
    if _content is not None:
        BLOCKS |= STUDIES[_name].blocks(_content)


def rendered(page: Path) -> str:
    """Return a page with its blocks filled."""

    def replaced(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            raise KeyError(f"{page.name}: unknown block {found[2]}")
        return f"{found[1]}{wrapped(BLOCKS[found[2]]())}\n{found[3]}"

    return _BLOCK.sub(replaced, page.read_text())


def wrapped(text: str) -> str:
    """Wrap long lines of Markdown; rows of tables stay whole, list items are indented."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("|"):
            indent = "  " * line.startswith("- ")
            line = textwrap.fill(
                line,
                WIDTH,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Draw the figures whose data are new, and fill the pages."""
    from PIL import Image

    for name, study in STUDIES.items():
        for figure, draw in study.figures.items():
            path = RESULTS / figure
            digest = hashlib.sha256((RESULTS / study.file).read_bytes()).hexdigest()
            drawn = None
            if path.exists():
                with Image.open(path) as picture:
                    drawn = picture.info.get("Source")
            if drawn != digest:
                metadata = {"Source": digest}
                draw(_CONTENTS[name]).savefig(path, dpi=120, metadata=metadata)
    for page in PAGES:
        page.write_text(rendered(page))
    return 0
