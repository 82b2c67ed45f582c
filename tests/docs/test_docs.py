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
from benchmarks.blocks import WIDTH
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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_is_longer_than_120_characters(page: Path) -> None:
    lines = [line for line in page.read_text().split("\n") if not line.startswith("|")]
    assert [line for line in lines if len(line) > WIDTH] == []


def test_the_walk_through_the_code_names_what_there_is() -> None:
    sources = [p for p in (ROOT / "hybrid_predict").rglob("*.py")] + [
        *ROOT.glob("integrations/*.py")
    ]
    known = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    named = re.findall(
        r"`([A-Za-z_][\w.]*)(?:\(.*?\))?`", (ROOT / "docs" / "design.md").read_text()
    )
    assert len(named) > 20
    assert {name for name in named if name.split(".")[-1] not in known} == set()


@pytest.mark.parametrize("name", [*PREDICTORS, *UPDATES])
def test_every_predictor_and_update_has_a_method_card(name: str) -> None:
    card = (ROOT / "docs" / "method_cards" / f"{name}.md").read_text()
    for heading in ("What it does.", "Memory.", "When it loses.", "Source."):
        assert f"**{heading}**" in card


@pytest.mark.parametrize("page", parameters(render.PAGES), ids=named)
def test_numbers_on_the_pages_are_those_of_the_results_files(page: Path) -> None:
    assert render.rendered(page) == page.read_text(), "run: python -m benchmarks pages"


NUMBER = re.compile(r"(?<![\w.-])\d*\.\d+(?![\w.])")
NO_RESULTS = {"3.10", "2.7", "0.7"}
"""Python's version, and the rows per unit of width that a test of the budget computes."""


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "when.md"], ids=named)
def test_results_stand_only_in_blocks_that_are_made_from_results_files(page: Path) -> None:
    blocks_and_code = r"<!-- results: .+?<!-- end -->|^```.*?^```|`[^`\n]+`"
    prose = re.sub(blocks_and_code, "", page.read_text(), flags=re.M | re.S)
    assert set(NUMBER.findall(prose)) <= NO_RESULTS


MARKED = re.compile(r"marked ((?:`\w+`(?:, | or | and )?)+)")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_markers_that_a_page_names_exist(page: Path) -> None:
    known = set(re.findall(r'^    "(\w+): ', (ROOT / "pyproject.toml").read_text(), re.M))
    assert known >= {"slow", "gpu"}
    text = page.read_text()
    commands = [line for line in text.splitlines() if re.match(r" *pytest .*-m ", line)]
    words = {word for line in commands for word in re.findall(r"-m (\w+)", line)}
    words |= {word for marks in MARKED.findall(text) for word in re.findall(r"`(\w+)`", marks)}
    assert words - {"python"} <= known


def test_version_is_the_same_wherever_it_stands() -> None:
    matches = {
        name: re.search(rf"^version{sign} ?\"?([^\"\n]+)", (ROOT / name).read_text(), re.M)
        for name, sign in (("pyproject.toml", " ="), ("CITATION.cff", ":"))
    }
    versions = {name: match and match[1] for name, match in matches.items()}
    assert set(versions.values()) == {hybrid_predict.__version__}, versions
