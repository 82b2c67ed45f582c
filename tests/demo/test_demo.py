"""The demo's model, data and command; audits themselves are tested in tests/audit."""

import json
import re

import pytest

from hybrid_predict import cli
from hybrid_predict.runs.evidence import ARMS

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")


TINY = ["demo", "--steps", "24", "--no-mlflow"]


@pytest.mark.slow
def test_a_demo_is_an_audit_that_writes_below_its_folder_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(TINY) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "hybrid-predict-demo/report.html" in out
    assert "no full steps were saved, so there is no saving to prove" in " ".join(out.split())
    (folder,) = tmp_path.iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", "report.html", "results.json", "runs", "runs.jsonl"}
    results = json.loads((folder / "results.json").read_text())
    counts = [(run["arm"], run["full_steps"]) for run in results["runs"]]
    assert counts == list(zip(ARMS, (24, 16, 16, 24), strict=True))
    assert all(run["rates"] == [0.0] and run["threads"] == 1 for run in results["runs"])
    digest = results["depends_on"]["text"]["sha256"]
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert digest in (folder / "report.html").read_text(encoding="utf-8")
