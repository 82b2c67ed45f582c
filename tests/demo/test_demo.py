"""The demo's file, model and data; audits themselves are tested in tests/audit."""

import json
from pathlib import Path

import pytest

from hybrid_predict import cli, demo
from hybrid_predict.runs.evidence import ARMS

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")


@pytest.mark.slow
def test_a_shorter_copy_of_the_demos_file_is_audited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(demo.__file__).parent / "audit.yaml").read_text().replace("600", "24")
    Path("copy.yaml").write_text(text.replace("val_check_interval: 150", "val_check_interval: 6"))
    assert cli.main(["audit", "copy.yaml", "--no-mlflow"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert "no full steps were saved, so there is no saving to prove" in " ".join(out.split())
    results = json.loads(Path("hybrid-predict-audit/results.json").read_text())
    counts = [(run["arm"], run["full_steps"]) for run in results["runs"]]
    assert counts == list(zip(ARMS, (24, 10, 10, 24), strict=True))
    assert all(run["rates"] == [0.0] for run in results["runs"])


def test_the_demo_is_planned_as_any_audit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--plan"]) == 0
    assert "full 600, short 240, corrected 240, hybrid 240 to 600" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
