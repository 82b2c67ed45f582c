"""The notebook is committed as it ran; the test of the site runs it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_the_notebook_is_committed_as_it_ran() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(content))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert "site-packages" not in json.dumps([cell["outputs"] for cell in code])
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert sum(o.get("name") == "stdout" for o in outputs) == 4
