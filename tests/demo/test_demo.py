"""The demo's model, data and command; audits themselves are tested in tests/audit."""

import json
import re
from functools import partial

import pytest
import torch

from hybrid_predict import cli
from hybrid_predict.runs.evidence import ARMS

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")

from hybrid_predict.demo import byte_gpt
from hybrid_predict.demo.byte_gpt import StdlibWindows

TINY = ["demo", "--steps", "24", "--no-mlflow"]


@pytest.fixture(autouse=True)
def few_windows(monkeypatch):
    monkeypatch.setattr(byte_gpt, "Recipe", partial(byte_gpt.Recipe, validation_windows=64))


@pytest.mark.slow
def test_a_demo_is_an_audit_that_writes_below_its_folder_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(TINY) == 0
    out, err = capsys.readouterr()
    assert err == "" and len(out.splitlines()) < 50
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


def test_windows_depend_on_the_seed_and_hold_the_next_bytes():
    train, validation = torch.arange(10_000).remainder(251).to(torch.uint8).reshape(2, -1)
    first, again, other = (
        next(iter(StdlibWindows(train, validation, seed, 64).train_dataloader()))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[:, 1:], (first[:, :-1].int() + 1).remainder(251).to(torch.uint8))
    batches = list(StdlibWindows(train, validation, 0, 64).val_dataloader())
    assert [tuple(x.shape) for x in batches] == [(32, 65), (32, 65), (14, 65)]
