"""The site builds without a warning, and lists every public name and every page."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import hybrid_predict
from hybrid_predict import errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *DOCS.glob("*.ipynb")])
PUBLIC = (
    "hybrid_predict",
    "hybrid_predict.audit",
    "hybrid_predict.forecast.predictors",
    "hybrid_predict.functional",
    "hybrid_predict.updates",
)
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data):: (\S+)$", re.M)
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
TOCTREE = re.compile(r"^```{toctree}\n(.*?)^```", re.M | re.S)


LEFT_OUT = () if find_spec("jax") else ("hybrid_predict.integrations.optax.",)
"""Beginnings of names that need an extra which is not installed."""


def resolved(name: str) -> Any:
    return pkgutil.resolve_name(name)


@pytest.fixture(scope="module")
def reference() -> list[Any]:
    """Every object that the API reference has."""
    text = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    return [resolved(n) for n in DIRECTIVE.findall(text) if not n.startswith(LEFT_OUT)]


def exported() -> Iterator[str]:
    for module in PUBLIC:
        yield from (f"{module}.{name}" for name in importlib.import_module(module).__all__)
    yield from (f"hybrid_predict.{name}" for name in hybrid_predict._HOMES)
    classes = [v for v in vars(errors).values() if isinstance(v, type)]
    public = [c.__name__ for c in classes if issubclass(c, Exception) and c.__name__[0] != "_"]
    yield from (f"hybrid_predict.errors.{name}" for name in public)


def used() -> Iterator[str]:
    """What pages and examples import of the package."""
    sources = [code for page in PAGES for code in FENCE.findall(page.read_text())]
    sources += [path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hybrid_predict"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


NAMES = sorted(name for name in {*exported(), *used()} if not name.startswith(LEFT_OUT))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_users_write_is_in_the_api_reference(name: str, reference: list[Any]) -> None:
    assert any(resolved(name) is known for known in reference), f"add {name} to docs/api/"


def navigated() -> set[Path]:
    """The pages that docs/index.md lists, and those beside a README.md or index.md among them."""
    index = DOCS / "index.md"
    lines = [line for block in TOCTREE.findall(index.read_text()) for line in block.splitlines()]
    names = [line for line in lines if line and not line.startswith(":")]
    found = [[DOCS / f"{name}{end}" for end in (".md", ".ipynb")] for name in names]
    pages = {index, *(page if page.exists() else other for page, other in found)}
    heads = [page for page in pages if page.name in ("README.md", "index.md") and page != index]
    return pages | {page for head in heads for page in head.parent.glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_stands_in_the_navigation(page: Path) -> None:
    assert page in navigated()


def test_the_navigation_lists_only_pages() -> None:
    assert navigated() == set(PAGES)


def test_the_figure_is_what_its_script_draws(tmp_path: Path) -> None:
    script, target = DOCS / "figures" / "steps.py", tmp_path / "steps.svg"
    subprocess.run([sys.executable, str(script), str(target)], check=True)
    committed = script.with_suffix(".svg").read_text()
    words = re.compile(r"<text[^>]*>([^<]+)</text>")
    assert words.findall(committed) == words.findall(target.read_text()) != []


def test_the_first_picture_fits_on_a_phone() -> None:
    rule = re.search(r"p > img([^{]*){ min-width", (DOCS / "static" / "site.css").read_text())
    picture = re.search(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert rule is not None and picture is not None
    assert f'[src$="{Path(picture[1]).name}"]' in rule[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as a command does it, with warnings as errors."""
    pytest.importorskip("myst_nb")
    folder = tmp_path_factory.mktemp("site")
    short = {**os.environ, "TUTORIAL_STEPS": "12"}  # the notebook is executed
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=short)
    assert done.returncode == 0, done.stderr  # stderr has what Jupyter says, too
    return folder


INCLUDED = {
    ROOT / "README.md": DOCS / "index.md",
    ROOT / "CONTRIBUTING.md": DOCS / "contributing" / "index.md",
    ROOT / "examples" / "README.md": DOCS / "examples.md",
}


def words(page: Path) -> Counter[str]:
    """The words of a page that readers see; not those of comments, directives, images and links."""
    unseen = r"<!--.*?-->|^```{.*?^```|^```\w*$|!\[.*?\]\([^)]*\)|\]\([^)]*\)"
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    seen = re.sub(unseen, "", text, flags=re.M | re.S)
    return Counter(re.findall(r"[^\W\d_]+", seen))


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, *INCLUDED], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_site_has_every_word_of_a_page(page: Path, site: Path) -> None:
    built = site / INCLUDED.get(page, page).relative_to(DOCS).with_suffix(".html")
    text = unescape(re.sub(r"<[^>]+>", "", built.read_text().split("<article")[1]))
    assert [word for word, count in words(page).items() if text.count(word) < count] == []


@pytest.mark.slow
def test_the_site_shows_what_the_notebook_prints_now(site: Path) -> None:
    page = (site / "notebook.html").read_text()
    assert "plain         12 full steps" in page and page.count("<img") >= 1
    assert "12 full + 0 predicted = 12 steps" in page and "300 full steps" not in page


@pytest.mark.slow
def test_the_site_fetches_nothing(site: Path) -> None:
    fetched = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    assert [page for page in site.rglob("*.html") if fetched.search(page.read_text())] == []
