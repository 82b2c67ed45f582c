"""Snippets in the documentation run, and links lead somewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hybrid_predict
from benchmarks import render
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.updates import UPDATES

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")

ABSENT = {name for name in ("jax", "optax") if not find_spec(name)}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


SLOW = ("docs/functional.md", "docs/loops.md", "docs/results.md")
"""Pages whose snippets, or numbers, take long."""


def parameters(pages: Iterable[Path]) -> list[Any]:
    return [pytest.param(p, marks=pytest.mark.slow if named(p) in SLOW else ()) for p in pages]


@pytest.mark.parametrize(
    "page", parameters(p for p in PAGES if FENCE.search(p.read_text())), ids=named
)
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = FENCE.findall(page.read_text())
    for snippet in snippets:
        if ABSENT & set(re.findall(r"^(?:import|from) (\w+)", snippet, re.M)):
            continue
        module = ModuleType("snippet")
        monkeypatch.setitem(sys.modules, "snippet", module)  # where dataclasses look
        exec(compile(snippet, named(page), "exec"), vars(module))
        printed = capsys.readouterr().out
        for line in re.findall(r"print\(.*\)  # (.+)$", snippet, re.M):
            assert line in printed


def test_links_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]
    assert [pair for pair in links if not (pair[0].parent / pair[1]).exists()] == []


def test_every_predictor_and_update_has_a_method_card() -> None:
    cards = {path.stem for path in (ROOT / "docs" / "method_cards").glob("*.md")}
    assert {*PREDICTORS, *UPDATES} <= cards


@pytest.mark.parametrize("page", parameters(render.PAGES), ids=named)
def test_numbers_on_the_pages_are_those_of_the_results_files(page: Path) -> None:
    assert render.rendered(page) == page.read_text(), "run: python -m benchmarks pages"


def test_version_is_the_same_wherever_it_stands() -> None:
    matches = {
        name: re.search(rf"^version{sign} ?\"?([^\"\n]+)", (ROOT / name).read_text(), re.M)
        for name, sign in (("pyproject.toml", " ="), ("CITATION.cff", ":"))
    }
    versions = {name: match and match[1] for name, match in matches.items()}
    assert set(versions.values()) == {hybrid_predict.__version__}, versions


def test_address_of_the_repository_is_the_same_wherever_it_stands() -> None:
    signs = {"README.md": "git clone", "pyproject.toml": "Repository =", "CITATION.cff": "-code:"}
    found = [
        re.search(rf'{sign} "?(https://[^\s"]+)', (ROOT / name).read_text())
        for name, sign in signs.items()
    ]
    assert len({match and match[1] for match in found}) == 1
