"""What the benchmark trains, keeps and shows."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from benchmarks import run as running
from benchmarks import step_cost, update_cost
from benchmarks import train as training
from benchmarks.__main__ import main
from benchmarks.arms import ARMS, PLAIN
from benchmarks.memory import Memory
from benchmarks.plan import SUITES, Plan, select
from benchmarks.run import run_plan, stored
from benchmarks.tasks import TASKS
from benchmarks.train import train
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.runs.rows import Rows

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(arm, task="inr"):
    """The cell of one arm of a tiny suite, with the task's rate, and its task."""
    plan = Plan(replace(SUITES["smoke"], tasks=(task,), arms={"default-decay": ()}))
    rates = plan.rates(task, "default-decay", "short", {})
    return plan._cell(task, "default-decay", arm, 0, rates), plan.task(task)


@pytest.mark.parametrize("decay", [True, False])
def test_plain_arm_is_an_ordinary_loop(decay):
    cell, task = tiny("plain")
    cell = replace(cell, decay=decay)
    model, batches, recipe = task.model(0), task.batches(0), task.recipe
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.betas,
        weight_decay=recipe.weight_decay, fused=True,
    )  # fmt: skip
    factor = recipe.factor(task.steps)
    for step in range(task.steps):
        if decay:
            optimizer.param_groups[0]["lr"] = recipe.learning_rate * factor(step)
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
    assert train(cell, task)["loss"] == pytest.approx(task.final_loss(model), rel=1e-6)


def gated(arm):
    config = arm.config(12)
    predictors = config.chosen_predictors if config and config.compression > 1 else {}
    return any(make_predictor(choice).gated for choice in predictors.values())


QUICK = ("short", "plain-double", "corrected", "hybrid", "predict-.5", "snoo", "muon")
"""Arms that train with every change; the others are slow."""


@pytest.mark.filterwarnings("ignore:.*predicted steps only:UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in ARMS]
)
def test_every_arm_trains_what_it_promises(name):
    cell, task = tiny(name)
    first, arm = train(cell, task), ARMS[name]
    assert first["full_steps"] + first["predicted_steps"] == arm.schedule(task.steps)
    if gated(arm):  # too few steps to know their skill
        assert first["predicted_steps"] == 0
    else:
        assert first["full_steps"] == cell.budget == round(task.steps * arm.share)
    assert first["undone_steps"] == 0
    assert first["loss"] < task.final_loss(task.model(0))
    again = train(cell, task)
    assert again == {**first, "seconds": again["seconds"]}


@pytest.mark.slow
def test_arms_differ_from_the_short_one():
    def longer(name):
        cell, task = tiny(name)
        return train(replace(cell, steps=36), replace(task, steps=36))["loss"]

    # Factors come in through the plan.
    controls = {name for name in ARMS if name.startswith("hidden-x")}
    alike = {
        frozenset(("short", *controls)),
        frozenset(
            name for name in ARMS if gated(ARMS[name]) and "only" not in name.split("-")
        ),  # too few steps to know skill, so all full ones
    }
    losses = {name: longer(name) for name in ARMS if name not in set(PLAIN) - {"short"}}
    equal = {}
    for name, loss in losses.items():
        equal.setdefault(loss, set()).add(name)
    assert {frozenset(names) for names in equal.values() if len(names) > 1} == alike


def test_a_run_that_diverges_ends_early_and_has_no_loss():
    cell, task = tiny("plain")
    found = train(replace(cell, rate=1e18, steps=400), replace(task, steps=400))
    assert found["loss"] is None
    assert found["full_steps"] == 50  # weights are looked at every 50 full steps
    json.dumps(found, allow_nan=False)


def test_memory_counts_held_tensors_once():
    memory = Memory()
    held = torch.zeros(1000)
    held.requires_grad_()
    held.grad = torch.zeros(1000)
    view = held.detach()[10:]
    assert memory.used() == 8000
    del held, view
    assert memory.used() == 0


def test_memory_of_training_is_weights_gradients_and_states():
    cell, task = tiny("short")
    train(cell, task)  # whatever is made once
    found = train(cell, task)["memory"]
    model = task.model(0)
    values = sum(p.numel() for p in model.parameters())
    constants = sum(4 * b.numel() for b in model.buffers())
    counts = 4 * len(list(model.parameters()))  # AdamW's step counts
    assert found == pytest.approx(16 * values + constants + counts, rel=0.02)


def test_batch_norm_statistics_are_those_of_the_weights_that_count():
    cell, task = tiny("ema", task="autoencoder")
    loss = train(cell, task)["loss"]
    run = training.Run(cell, task)
    run.train()
    run.show_final_weights()
    stale = copy.deepcopy(run.model)
    assert task.final_loss(run.model) == pytest.approx(loss)
    for module in stale.modules():
        if hasattr(module, "running_mean"):
            module.reset_running_stats()
    assert task.final_loss(stale) != pytest.approx(loss)


@pytest.mark.slow
def test_run_plan_resumes_and_gives_paired_results(tmp_path, monkeypatch):
    plan = Plan(select(SUITES["smoke"], tasks=["inr"], arms=["hybrid"], seeds=1))
    seen = []
    done = run_plan(plan, stored(tmp_path), 2, lambda row: seen.append(row["arm"]))
    assert sorted(seen) == sorted(cell.arm for cell in done)
    assert {cell.arm for cell in done} == {*PLAIN, "hybrid"}
    assert done[next(c for c in done if c.arm == "short")]["loss"] == pytest.approx(
        train(*tiny("short"))["loss"], rel=1e-6
    )

    def forbidden(*_):
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(running, "train", forbidden)
    assert run_plan(plan, stored(tmp_path)) == done


def test_step_cost_measures_every_way():
    found = step_cost.measure(TASKS["inr"].tiny(), blocks=2, length=2)
    assert found["plain_ms"] > 0
    held = {way: found[way]["memory"] for way in step_cost.WAYS}
    assert held["plain"] < held["corrected"] < held["predicted"] < held["both"]
    assert all(found[way]["ratio"] > 0 and "waits" not in found[way] for way in step_cost.ADDED)


def test_update_cost_tells_the_mechanisms_apart(monkeypatch):
    monkeypatch.setattr(update_cost, "SIZES", {"tiny": (2, 16)})
    monkeypatch.setattr(update_cost, "ROUNDS", {"tiny": 2})
    rows = {name: update_cost.measure(name, "tiny", "float32") for name in update_cost.MECHANISMS}
    passes = {name: row["passes"] for name, row in rows.items()}
    # Forecasts take no products but those of the samples, here of all entries, as a window closes.
    assert passes["predicted"]["products"] < 0.1 * passes["corrected"]["products"]
    assert passes["predicted"]["others"] < passes["corrected + predicted"]["others"]
    # The averaged gradients, the drift, one number per row, and four samples, here of all entries.
    held = {name: row["bytes_per_parameter"] for name, row in rows.items()}
    assert held["predicted"] == pytest.approx(8 + 16, rel=1e-3)
    # Covariance and root take as much as a matrix if it is square, and less if it is not.
    assert 5 < held["corrected"] < 6 < 25 < held["corrected + predicted"] < 26


ARGUMENTS = ["--suite", "smoke", "--tasks", "inr", "--arms", "hybrid", "--output-dir"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    assert main(["run", *ARGUMENTS, str(folder)]) == 0
    return folder / "results.json"


def test_table_prints_and_fills_pages(results, tmp_path, capsys):
    assert main(["table", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "| task |" in printed
    page = tmp_path / "page.md"
    untouched = "<!-- results: demo -->\nold\n<!-- end -->\n"
    page.write_text(f"<!-- results: bench smoke arms -->\nold\n<!-- end -->\n{untouched}")
    assert main(["table", str(results), "--write", str(page)]) == 0
    filled = page.read_text()
    assert filled.endswith(untouched)
    assert "| arm |" in filled
    assert main(["table", str(results), "--write", str(page)]) == 0
    assert page.read_text() == filled


def test_plot_draws(results, tmp_path):
    picture = tmp_path / "bench.svg"
    assert main(["plot", str(results), "--output", str(picture)]) == 0
    assert "hybrid" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--suite", "nope"], "--suite"),
        (["run", "--suite", "smoke", "--jobs", "0"], "jobs"),
        (["run", "--suite", "smoke", "--jobs", "two"], "--jobs"),
        (["table", "other.json"], "It lacks"),
        (["rnu"], "Did you mean run?"),
        (["table", "missing.json"], "missing.json"),
        (["plot", "{results}", "--output", "nowhere/bench.png"], "--output"),
        (["plot", "{results}", "--output", "bench.docx"], "--output"),
        (["table", "{results}", "--write", "pyproject.toml"], "bench smoke arms"),
        (["table", "{results}", "--write", "missing.md"], "missing.md"),
    ],
)
def test_bad_usage_is_one_line(arguments, complaint, results, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "other.json").write_text('{"suite": "x"}')
    assert main([*(a.format(results=results) for a in arguments)]) == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_interrupted_run_keeps_what_is_done(tmp_path, monkeypatch, capsys):
    kept = Rows.add

    def stop_at_the_third(store, row):
        if len(store.done) == 2:
            raise KeyboardInterrupt
        kept(store, row)

    monkeypatch.setattr(Rows, "add", stop_at_the_third)
    assert main(["run", *ARGUMENTS, str(tmp_path)]) == 130
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["cells"]["done"] == 2
    assert "2 of 6 runs" in capsys.readouterr().out
