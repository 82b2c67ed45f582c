import json
import math
import re
import signal
import sqlite3

import pytest
import torch

from hybrid_predict import cli
from hybrid_predict.cli.screen import Screen
from hybrid_predict.demo import run as demo
from hybrid_predict.demo import training
from hybrid_predict.demo.schedule import linear_schedule
from hybrid_predict.demo.training import DemoRecipe
from hybrid_predict.report.page import conclusion, skill_rows
from hybrid_predict.runs.evidence import CONTROL, CORRECTED, FULL, HYBRID, SHORT, spread

pytest.importorskip("lightning")
pytest.importorskip("matplotlib")

STEPS, TINY = 24, ["demo", "--quick", "--steps", "24", "--threads", "1"]
ARMS = (FULL, SHORT, CORRECTED, HYBRID, CONTROL)


@pytest.fixture(scope="module", autouse=True)
def small_model():
    """One narrow block instead of the demo's model."""
    small = {"layers": 1, "width": 16, "validation_windows": 64, "curve_windows": 32}
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
        ".lock", "mlartifacts", "mlflow.db", "report.html", "results.json", "runs",
    }  # fmt: skip


def test_steps_of_every_arm_add_up(finished):
    _, _, results, _ = finished
    assert not results["partial"]
    names = [(run["seed"], run["arm"]) for run in results["runs"]]
    assert names == [(seed, arm) for seed in (0, 1) for arm in ARMS]
    expected = {
        FULL: (24, 0, 24), SHORT: (16, 0, 16), CORRECTED: (16, 0, 16), HYBRID: (24, 0, 24),
        CONTROL: (24, 0, 24),
    }  # fmt: skip
    for run in results["runs"]:
        counts = (run["full_steps"], run["predicted_steps"], run["steps"])
        assert counts == expected[run["arm"]]
        assert run["undone_steps"] == 0
        assert run["seconds_per_full_step"] == pytest.approx(run["seconds"] / run["full_steps"])
        steps = [point[0] for point in run["curve"]]
        # Measured as often as planned; without skill the hybrid arm takes half as many again.
        assert len(steps) == (12 if run["arm"] == HYBRID else 8)
        assert steps[-1] == run["full_steps"]
        assert (run["ledger"] is not None) == (run["arm"] in (CORRECTED, HYBRID))
        if run["ledger"]:
            assert run["ledger"]["corrected_steps"] > 0
    assert results["recipe"]["steps"] == STEPS
    assert results["config"]["speedup"] == 1.5
    assert re.fullmatch("[0-9a-f]{64}", results["text"]["sha256"])
    assert results["environment"]["torch"] == torch.__version__
    assert {run["threads"] for run in results["runs"]} == {1}


def test_statistics_are_those_of_the_runs(finished):
    _, _, results, _ = finished
    loss = {(run["arm"], run["seed"]): run["val_loss"] for run in results["runs"]}
    for arm in ARMS:
        assert results["summary"][arm]["val_loss"] == spread([loss[arm, 0], loss[arm, 1]])
    assert len(results["paired"]) == 4
    for pair, found in results["paired"].items():
        left, right = pair.split(" - ")
        assert found == spread([loss[left, seed] - loss[right, seed] for seed in (0, 1)])


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


def test_report_loads_nothing(finished):
    _, work, results, _ = finished
    page = (work / "out/report.html").read_text(encoding="utf-8")
    assert all(source.startswith("data:image/") for source in re.findall(r'src="([^"]*)"', page))
    assert page.count("data:image/svg+xml;base64,") == 5
    assert not re.search(r"<script|<link|@import|url\(|href=|https?:", page)
    assert results["conclusion"]["headline"] in page
    assert not re.search("equivalent|forecast point|horizon", page, re.I)
    assert "Partial results" not in page


def test_mlflow_has_a_parent_run_and_nested_runs(finished):
    _, work, results, _ = finished
    with sqlite3.connect(work / "out/mlflow.db") as connection:

        def ask(query):
            return connection.execute(query).fetchall()

        assert ("hybrid-predict demo",) in ask("select name from experiments")
        assert {status for (status,) in ask("select status from runs")} == {"FINISHED"}
        ((parent,),) = ask("select run_uuid from runs where name = 'demo'")
        nested = ask("select value from tags where key = 'mlflow.parentRunId'")
        assert nested == [(parent,)] * 10
        logged = ask("select distinct key from metrics")
        assert {("train_loss",), ("val_loss",), ("predicted_steps",), ("steps",)} <= set(logged)
        losses = {value for (value,) in ask("select value from metrics where key = 'val_loss'")}
    connection.close()
    assert losses == {run["val_loss"] for run in results["runs"]}
    reports = list((work / "out/mlartifacts").rglob("report.html"))
    assert [path.parts[-3] for path in reports] == [parent]


def test_output_to_a_file_is_short_and_names_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) < 40
    assert str(tmp_path / "report.html") in out
    assert "hint" in out
    assert not re.search("proof|equivalent|forecast", out, re.I)
    assert files(tmp_path) == [".lock", "report.html", "results.json", *["runs"] * 5]


@pytest.mark.parametrize("mlflow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_partial_results(tmp_path, monkeypatch, capsys, mlflow):
    started = []
    monkeypatch.setattr(Screen, "run_started", lambda self, arm, *_: started.append(arm))

    def stepped(self, full_steps, loss):
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Screen, "stepped", stepped)
    handler = signal.getsignal(signal.SIGINT)
    extra = [] if mlflow else ["--no-mlflow"]
    assert cli.main([*TINY, *extra, "--output-dir", str(tmp_path)]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["partial"] is True
    assert [run["arm"] for run in results["runs"]] == [FULL]
    assert results["plain_steps_to_reach"] == {}
    assert "Partial results" in (tmp_path / "report.html").read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert "Stopped after 1 of 4 runs" in out
    assert str(tmp_path / "report.html") in out


def test_ctrl_c_in_the_first_run_leaves_a_readable_report(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_arm", stop)
    assert cli.main([*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]) == 130
    assert json.loads((tmp_path / "results.json").read_text())["runs"] == []
    assert "Nothing to compare yet" in (tmp_path / "report.html").read_text(encoding="utf-8")


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_finished_demo_is_shown_and_survives_ctrl_c(tmp_path, monkeypatch, capsys):
    arguments = [*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]
    assert cli.main(arguments) == 0
    first = results_of(tmp_path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_arm", stop)
    capsys.readouterr()
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "Nothing was trained" in out
    assert out.count("done before") == 5
    assert results_of(tmp_path) == first
    assert cli.main([*arguments, "--seeds", "2"]) == 130  # goes on, and is stopped
    assert results_of(tmp_path)["runs"] == first["runs"]
    assert "Stopped after 4 of 8 runs" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A hint from 1 paired seed" in page
    assert cli.main([*arguments, "--speedup", "2"]) == 2
    assert "one with other speedup" in capsys.readouterr().err
    assert results_of(tmp_path)["runs"] == first["runs"]
    assert cli.main([*arguments, "--overwrite"]) == 130
    assert results_of(tmp_path)["runs"] == []


def test_a_folder_with_other_results_is_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    assert cli.main([*TINY, "--no-mlflow", "--output-dir", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == "{}"


def test_the_report_shows_skill():
    skills = {"hidden": {"mean": 0.31, "lower": 0.25, "length": 1.0, "windows": 9}}
    run = {"arm": HYBRID, "seed": 0, "predicted_steps": 7, "undone_steps": 1}
    rows = skill_rows({"runs": [{**run, "ledger": {"skills": skills}}]})
    assert rows == [
        {
            "seed": "0", "kind": "hidden", "mean": "0.31", "lower": "0.25", "windows": "9",
            "predicted": "7 (1 undone)",
        }
    ]  # fmt: skip


def fake_results(seeds, hybrid=1.9, corrected=1.95, partial=False, price=1.25):
    shape = {FULL: (1600, 0), SHORT: (400, 0), CORRECTED: (400, 0), HYBRID: (400, 1200)}
    losses = {FULL: 1.8, SHORT: 2.0, CORRECTED: corrected, HYBRID: hybrid}
    runs = [
        {
            "arm": arm, "seed": seed, "full_steps": full_steps, "predicted_steps": predicted,
            "undone_steps": 0, "steps": full_steps + predicted,
            "seconds": full_steps * (price if arm == HYBRID else 1.0),
            "seconds_per_full_step": price if arm == HYBRID else 1.0,
            "val_loss": losses[arm] + 0.01 * seed,
        }
        for seed in range(seeds)
        for arm, (full_steps, predicted) in shape.items()
    ]  # fmt: skip
    runs = runs[:-1] if partial else runs
    results = {"runs": runs, "planned_runs": 4 * seeds, "partial": partial, **demo.compare(runs)}
    return {**results, "conclusion": conclusion(results)}


def test_compare_by_hand():
    results = fake_results(3)
    assert results["summary"][HYBRID]["val_loss"] == pytest.approx(
        {"mean": 1.91, "sd": 0.01, "n": 3}
    )
    assert results["summary"][HYBRID]["seconds"] == 500
    means = {pair: found["mean"] for pair, found in results["paired"].items()}
    assert means == pytest.approx(
        {
            "hybrid - full": 0.1, "hybrid - short": -0.1, "corrected - short": -0.05,
            "hybrid - corrected": -0.05,
        }
    )  # fmt: skip
    assert results["overhead_ratio"] == 1.25
    reached = {HYBRID: 800, CORRECTED: 400 * 4**0.25}
    assert results["plain_steps_to_reach"] == pytest.approx(reached)


def test_compare_leaves_incomplete_seeds_out_of_comparisons():
    results = fake_results(3, partial=True)
    assert results["summary"][FULL]["val_loss"]["n"] == 3
    assert results["paired"]["hybrid - full"]["n"] == 2
    assert results["plain_steps_to_reach"][HYBRID] == pytest.approx(800)
    text = results["conclusion"]["text"]
    assert "11 of 12 runs are done" in text
    assert "1.9050 nats per byte. Plain training is at 2.0050" in text


@pytest.mark.parametrize(
    ("hybrid", "corrected", "said"),
    [
        (1.9, 1.95, "400 hybrid full steps do the work of 800 plain ones; 50% of the gain by corr"),
        (1.9, 1.88, "do the work of 800 plain ones; predicted steps lost a part"),
        (1.9, 2.02, "do the work of 800 plain ones; predicted steps gained it"),
        (1.7, 1.73, "lower loss than the full run, with 75% fewer full steps; 90% of the gain by"),
        (2.1, 2.0, "no gain over plain training with as many full steps"),
        (2.0, 2.0, "no gain over plain training with as many full steps"),
        (math.nan, 1.9, "No comparison"),
    ],
)
def test_conclusion_says_what_was_found_and_what_earned_it(hybrid, corrected, said):
    assert said in fake_results(1, hybrid, corrected)["conclusion"]["headline"]


@pytest.mark.parametrize("seeds", [1, 2, 4, 5, 6])
def test_few_seeds_are_a_hint(seeds):
    said = " ".join(fake_results(seeds)["conclusion"].values())
    assert ("hint" in said) == (seeds < 5)
    assert "proof" not in said
    assert "prove" not in said
