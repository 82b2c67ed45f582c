"""The demo's model, data and command; what an audit does with them is tested with audits."""

import json
import re
import sqlite3

import pytest
import torch

from hybrid_predict import cli
from hybrid_predict.cli.screen import Screen
from hybrid_predict.demo import run as demo
from hybrid_predict.demo import training
from hybrid_predict.demo.run import CONTROLS
from hybrid_predict.demo.schedule import linear_schedule
from hybrid_predict.demo.text import StdlibText
from hybrid_predict.demo.training import DemoRecipe
from hybrid_predict.runs.evidence import CORRECTED, FULL, HYBRID, SHORT

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")

STEPS, TINY = 24, ["demo", "--quick", "--steps", "24", "--threads", "1"]
(CONTROL,) = CONTROLS
ARMS = (FULL, SHORT, CORRECTED, HYBRID, CONTROL)


@pytest.fixture(scope="module", autouse=True)
def small_model():
    """One narrow block instead of the demo's model."""
    small = {"layers": 1, "width": 16, "validation_windows": 64}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DemoRecipe, "quick", classmethod(lambda cls: cls(**small)))
        yield


def files(folder):
    return sorted(path.relative_to(folder).parts[0] for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_model):
    """One demo of all arms, with two seeds and MLflow: exit status, folder, results, batches."""
    pytest.importorskip("mlflow")
    work = tmp_path_factory.mktemp("demo with space")
    draw, firsts = training.TrainingBatches.__iter__, []

    def recorded(self):
        for k, batch in enumerate(draw(self)):
            if k == 0:
                firsts.append([])
            if k < 3:
                firsts[-1].append(batch[0].sum().item())
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setattr(training.TrainingBatches, "__iter__", recorded)
        status = cli.main([*TINY, "--seeds", "2", "--controls", "--output-dir", "out"])
    return status, work, json.loads((work / "out/results.json").read_text()), firsts


def test_demo_writes_below_its_output_folder_only(finished):
    status, work, _, _ = finished
    assert status == 0
    assert set(files(work)) == {"out"}
    assert set(files(work / "out")) == {
        ".lock", "mlartifacts", "mlflow.db", "report.html", "results.json", "runs", "runs.jsonl",
    }  # fmt: skip


def test_the_demo_is_an_audit_of_its_recipe(finished):
    _, work, results, _ = finished
    assert not results["partial"]
    names = [(run["seed"], run["arm"]) for run in results["runs"]]
    assert names == [(seed, arm) for seed in (0, 1) for arm in ARMS]
    counts = {run["arm"]: (run["full_steps"], run["steps"]) for run in results["runs"]}
    assert counts == {
        FULL: (24, 24), SHORT: (16, 16), CORRECTED: (16, 16), HYBRID: (24, 24), CONTROL: (24, 24),
    }  # fmt: skip
    for run in results["runs"]:
        assert run["failure"] is None
        assert run["threads"] == 1
        assert run["rates"] == [0.0] * (2 if run["arm"] == CONTROL else 1)
        steps = [point[0] for point in run["metric_curve"]]
        assert steps == ([4, 8, 12, 16] if run["full_steps"] == 16 else [6, 12, 18, 24])
        assert (run["ledger"] is not None) == (run["arm"] in (CORRECTED, HYBRID))
    assert results["depends_on"]["recipe"]["steps"] == STEPS
    assert re.fullmatch("[0-9a-f]{64}", results["depends_on"]["text"]["sha256"])
    assert results["config"]["controls"] == CONTROLS
    page = (work / "out/report.html").read_text(encoding="utf-8")
    assert results["depends_on"]["text"]["sha256"] in page
    assert "hidden_factor = 2.0" in page
    with sqlite3.connect(work / "out/mlflow.db") as connection:
        found = connection.execute("select name from experiments").fetchall()
        logged = connection.execute("select distinct key from metrics").fetchall()
    connection.close()
    assert ("hybrid-predict demo",) in found
    assert {("train_loss",), ("val_loss",), ("full hidden x2/metric",)} <= set(logged)


def test_the_metric_is_the_loss_on_the_validation_windows():
    recipe = DemoRecipe(layers=1, width=16, validation_windows=64)
    text = training_text()
    module, data = training.build_module(recipe, 1, 0), training.build_data(recipe, text, 0)
    batches = list(data.val_dataloader())
    assert [tuple(x.shape) for x, _ in batches] == [(32, 64)] * 2
    logged = []
    module.log = lambda name, value, **_: logged.append((name, float(value.detach())))
    for k, batch in enumerate(batches):
        module.validation_step(batch, k)
    assert [name for name, _ in logged] == ["val_loss"] * 2
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss = torch.nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten())
    assert sum(value for _, value in logged) / 2 == pytest.approx(float(loss.detach()))


def training_text():
    drawn = torch.randint(256, (2, 5000), generator=torch.Generator().manual_seed(0))
    train, val = drawn.to(torch.uint8)
    return StdlibText(train=train, val=val, sha256="", num_files=2)


def test_arms_of_a_seed_see_the_same_batches(finished):
    _, _, _, firsts = finished
    first, second = firsts[:5], firsts[5:]
    assert all(batches == first[0] for batches in first)
    assert all(batches == second[0] for batches in second)
    assert first[0] != second[0]


def test_arms_of_a_seed_start_from_the_same_weights():
    recipe = DemoRecipe.quick()
    state = torch.get_rng_state()
    full, short, control, other = (
        training.build_module(recipe, steps, seed, factor).state_dict()
        for steps, seed, factor in ((24, 0, 1.0), (16, 0, 1.0), (24, 0, 2.0), (24, 1, 1.0))
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(full[k], short[k]) and torch.equal(full[k], control[k]) for k in full)
    assert not torch.equal(full["model.head.weight"], other["model.head.weight"])


def test_control_doubles_the_rate_of_hidden_matrices_only():
    module = training.build_module(DemoRecipe(learning_rate=0.01), 100, 0, 2.0)
    (optimizer,), _ = module.configure_optimizers()
    rates = {id(p): g["initial_lr"] for g in optimizer.param_groups for p in g["params"]}
    named = {name: rates[id(p)] for name, p in module.model.named_parameters()}
    assert named["blocks.0.qkv.weight"] == 0.02
    assert named["blocks.0.qkv.bias"] == named["head.weight"] == 0.01
    assert named["token_embedding.weight"] == 0.01


def test_schedule_rises_then_falls_to_zero():
    factor = linear_schedule(100, 0.05)
    assert [factor(k) for k in (0, 4, 5)] == pytest.approx([0.2, 1.0, 1.0])
    assert factor(52) == pytest.approx(48 / 95)
    assert factor(100) == 0


def test_output_to_a_file_is_short_and_names_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TINY, "--no-mlflow"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) < 50
    folder = tmp_path / "hybrid-predict-demo-quick"
    assert f"{folder.name}/report.html" in out
    assert "no full steps were saved, so there is no saving to prove" in " ".join(out.split())
    assert "for proof" not in out  # nothing is predicted in 24 steps
    assert not re.search("equivalent|forecast point|horizon", out, re.I)
    assert set(files(tmp_path)) == {folder.name}
    assert set(files(folder)) == {".lock", "report.html", "results.json", "runs", "runs.jsonl"}


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_demo_is_stopped_goes_on_and_is_shown_when_finished(tmp_path, monkeypatch, capsys):
    arguments = [*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]

    def stop(self, full_steps, loss):
        if self._done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Screen, "stepped", stop)
        assert cli.main(arguments) == 130
    first = results_of(tmp_path)
    assert [run["arm"] for run in first["runs"]] == [FULL, SHORT]
    assert first["partial"]
    assert "Stopped after 2 of 4 runs" in capsys.readouterr().out
    tried = []
    monkeypatch.setattr(demo, "fastest_threads", lambda *_: tried.append(1) or 1)
    assert cli.main([word for word in arguments if word not in ("--threads", "1")]) == 0
    assert tried == []  # the arms that are there tell
    assert capsys.readouterr().out.count("done before") == 2
    second = results_of(tmp_path)
    assert second["runs"][:2] == first["runs"]
    assert cli.main(arguments) == 0
    assert "Nothing was trained" in capsys.readouterr().out
    assert results_of(tmp_path) == second
    assert cli.main([*arguments, "--speedup", "2"]) == 2
    assert "arms with other speedup" in capsys.readouterr().err
    assert cli.main([*arguments, "--learning-rate", "0.1"]) == 2
    assert "arms with other recipe" in capsys.readouterr().err
    assert results_of(tmp_path) == second
    with monkeypatch.context() as patch:
        patch.setattr(Screen, "run_started", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert cli.main([*arguments, "--overwrite"]) == 130
    assert results_of(tmp_path)["runs"] == []


def test_a_folder_with_other_results_is_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    assert cli.main([*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == "{}"
