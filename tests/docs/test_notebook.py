"""The notebook runs from its first cell to its last, and shows ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def printed(notebook: Any) -> list[str]:
    """What each cell prints, without what is logged."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [output["text"] for output in outputs if output.get("name") == "stdout"]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTORIAL_STEPS", "60")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=1800, resources=folder).execute()
    shown = printed(notebook)
    assert len(shown) == len(printed(nbformat.read(NOTEBOOK, as_version=4))) == 4
    assert "= 60 steps" in shown[0] and "full step 200" in shown[2]


def test_the_notebook_is_committed_as_it_ran() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(content))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert "site-packages" not in json.dumps([cell["outputs"] for cell in code])
    assert not [o for o in outputs if o["output_type"] == "error"]
