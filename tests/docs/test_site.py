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
from collections.abc import Iterator
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


def test_names_that_users_write_are_in_the_api_reference(reference: list[Any]) -> None:
    known = {id(each) for each in reference}
    assert [name for name in NAMES if id(resolved(name)) not in known] == [], "add to docs/api/"


def navigated() -> set[Path]:
    """The pages that docs/index.md lists, and those beside a README.md or index.md among them."""
    index = DOCS / "index.md"
    lines = [line for block in TOCTREE.findall(index.read_text()) for line in block.splitlines()]
    names = [line for line in lines if line and not line.startswith(":")]
    found = [[DOCS / f"{name}{end}" for end in (".md", ".ipynb")] for name in names]
    pages = {index, *(page if page.exists() else other for page, other in found)}
    heads = [page for page in pages if page.name in ("README.md", "index.md") and page != index]
    return pages | {page for head in heads for page in head.parent.glob("*.md")}


def test_pages_stand_in_the_navigation() -> None:
    assert navigated() == set(PAGES)


def test_the_notebook_is_committed_as_it_ran() -> None:
    nbformat = pytest.importorskip("nbformat")
    content = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(content))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert "site-packages" not in json.dumps([cell["outputs"] for cell in code])
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert sum(o.get("name") == "stdout" for o in outputs) == 4


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


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing(site: Path) -> None:
    assert all((site / page.relative_to(DOCS)).with_suffix(".html").exists() for page in PAGES)
    fetched = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    assert [page for page in site.rglob("*.html") if fetched.search(page.read_text())] == []
