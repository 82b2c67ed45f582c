"""Snippets in the documentation run, links lead somewhere, examples work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import render
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.updates import UPDATES

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if FENCE.search(p.read_text())], ids=named)
def test_snippets_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = FENCE.findall(page.read_text())
    for snippet in snippets:
        exec(compile(snippet, named(page), "exec"), {"__name__": "snippet"})
        printed = capsys.readouterr().out
        for line in re.findall(r"print\(.*\)  # (.+)$", snippet, re.M):
            assert line in printed


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("name", [*PREDICTORS, *UPDATES])
def test_every_predictor_and_update_has_a_method_card(name: str) -> None:
    card = (ROOT / "docs" / "method_cards" / f"{name}.md").read_text()
    for heading in ("What it does.", "Memory.", "When it loses.", "Source."):
        assert f"**{heading}**" in card


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_loop_example_resumes_bit_for_bit() -> None:
    first, resumed = example("plain_loop").main()
    assert first.engine.ledger.full_steps == resumed.engine.ledger.full_steps < 240
    pairs = zip(first.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_lightning_example_ends_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = example("lightning_callback").main(max_epochs=3)
    assert trainer.global_step == 69
    assert trainer.callbacks[0].ledger.steps == 69


@pytest.mark.parametrize("page", render.PAGES, ids=named)
def test_numbers_on_the_pages_are_those_of_the_results_files(page: Path) -> None:
    assert render.rendered(page) == page.read_text(), "run: python -m benchmarks.render"


def test_readme_shows_results() -> None:
    assert ROOT / "README.md" in render.PAGES
