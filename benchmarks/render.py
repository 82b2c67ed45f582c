"""Makes the figures of docs/results, and fills the blocks of README.md and of the pages in docs/.

Numbers come from the files in docs/results/. The tables of closed decisions do not change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks import RESULTS, across, load, ranks
from benchmarks.blocks import fill, names
from benchmarks.plot import save_figure
from benchmarks.studies import STUDIES, Blocks

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if DECISIONS not in page.parents and names(page.read_text())
)

_CONTENTS = {name: study.read(RESULTS) for name, study in STUDIES.items()}

BLOCKS: Blocks = {
    **{
        block: make
        for name, content in _CONTENTS.items()
        if content is not None
        for block, make in STUDIES[name].blocks(content).items()
    },
    **ranks.blocks(load("ranks.json")),
    "below corrected": across.below_corrected,
    "peers": across.peers,
    "seconds": across.seconds,
}


def rendered(page: Path) -> str:
    """Return a page with its blocks filled."""
    text = page.read_text()
    if unknown := set(names(text)) - BLOCKS.keys():
        raise KeyError(f"{page.name}: unknown blocks {sorted(unknown)}")
    return fill(text, BLOCKS)


def main() -> int:
    """Draw the figures whose data are new, and fill the pages."""
    from PIL import Image

    for name, study in STUDIES.items():
        digest = hashlib.sha256((RESULTS / study.file).read_bytes()) if _CONTENTS[name] else None
        for figure, draw in study.figures.items():
            path = RESULTS / figure
            if digest is None:
                continue
            if path.exists():
                with Image.open(path) as picture:
                    if picture.info.get("Source") == digest.hexdigest():
                        continue
            save_figure(draw(_CONTENTS[name]), path, RESULTS / study.file)
    for page in PAGES:
        page.write_text(rendered(page))
    return 0
