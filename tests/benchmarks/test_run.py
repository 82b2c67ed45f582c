"""What the benchmark trains, keeps and shows."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from benchmarks import step_cost
from benchmarks.__main__ import main
from benchmarks.arms import ARMS, PLAIN
from benchmarks.plan import Plan, Selection, make_runs
from benchmarks.registry import STUDIES, Study
from benchmarks.studies import suites
from benchmarks.tasks import TASKS
from benchmarks.train import train
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.runs.runtime import Rows

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(arm, task="inr"):
    """The cell of one arm of a tiny suite, and its task."""
    plan = suites.SUITES["smoke"].plan(Selection(tasks=(task,), arms=(arm,)))
    return next(cell for cell in plan.keys({}) if cell.arm == arm), plan.tasks[task]


def test_plain_arm_is_an_ordinary_loop():
    cell, task = tiny("plain")
    model = task.model(0)
    batches = task.batches(0)
    recipe = task.recipe
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.betas,
        weight_decay=recipe.weight_decay, fused=True,
    )  # fmt: skip
    factor = recipe.factor(task.steps)
    for step in range(task.steps):
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


QUICK = ("plain-double", "hybrid", "predict-.5", "muon")
"""Arms that train with every change; the others are slow."""


@pytest.mark.filterwarnings("ignore:.*predicted steps only:UserWarning")
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in ARMS],
)
def test_every_arm_trains_what_it_promises(name):
    cell, task = tiny(name)
    first = train(cell, task)
    arm = ARMS[name]
    assert first["full_steps"] + first["predicted_steps"] == arm.schedule(task.steps)
    if gated(arm):  # too few steps to know their skill
        assert first["predicted_steps"] == 0
    else:
        assert first["full_steps"] == cell.budget == round(task.steps * arm.share)
    assert first["undone_steps"] == 0
    assert first["loss"] < task.final_loss(task.model(0))
    again = train(cell, task)
    assert again == {**first, "seconds": again["seconds"]}


def test_a_run_that_diverges_ends_early_and_has_no_loss():
    cell, task = tiny("plain")
    found = train(replace(cell, rate=1e18, steps=400), replace(task, steps=400))
    assert found["loss"] is None
    assert found["full_steps"] == 50  # weights are looked at every 50 full steps
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_runs_go_on_where_they_were_and_are_paired(tmp_path, capsys):
    plan = suites.SUITES["smoke"].plan(Selection(tasks=("inr",), arms=("hybrid",)))
    store = Rows(tmp_path / "runs.jsonl", plan.key)
    make_runs(plan, store, 2)
    done = dict(store.done)
    printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert sorted(row["arm"] for row in printed) == sorted(cell.arm for cell in done)
    assert {cell.arm for cell in done} == {*PLAIN, "hybrid"}
    assert done[next(c for c in done if c.arm == "short")]["loss"] == pytest.approx(
        train(*tiny("short"))["loss"], rel=1e-6
    )
    again = Rows(tmp_path / "runs.jsonl", plan.key)
    make_runs(plan, again)
    assert again.done == done and not capsys.readouterr().out


class Letters(Plan):
    """A run for each of the chosen letters."""

    def __init__(self, chosen):
        self.chosen_letters = chosen.tasks

    def keys(self, done):
        yield from self.chosen_letters

    def key(self, row):
        return row["letter"]

    def work(self, key):
        return {"letter": key, "made": True}


def test_a_part_of_a_study_leaves_the_rest(tmp_path, monkeypatch, capsys):
    letters = Study("letters", "letters.jsonl", Letters, dict)
    monkeypatch.setitem(STUDIES, "letters", letters)
    monkeypatch.setattr("benchmarks.plan.workers", ThreadPoolExecutor)  # a process takes seconds
    for chosen in (["a", "b"], ["b", "c"]):
        assert main(["run", "letters", "--tasks", *chosen, "--output-dir", str(tmp_path)]) == 0
    assert sorted(row["letter"] for row in letters.read(tmp_path)) == ["a", "b", "c"]
    assert capsys.readouterr().out.count('"letter": "b"') == 1


def test_step_cost_measures_every_way():
    found = step_cost.measure(TASKS["inr"].tiny(), blocks=2, length=2)
    assert found["plain_ms"] > 0
    held = {way: found[way]["memory"] for way in step_cost.WAYS}
    assert held["plain"] < held["corrected"] < held["predicted"] < held["both"]
    assert all(found[way]["ratio"] > 0 for way in step_cost.ADDED)


ARGUMENTS = ["smoke", "--tasks", "inr", "--arms", "hybrid", "--output-dir"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    assert main(["run", *ARGUMENTS, str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_results_are_shown_as_tables(results, capsys):
    assert main(["show", "smoke", "--output-dir", str(results)]) == 0
    assert "| hybrid (default) | " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nope"], "invalid choice"),
        (["run", "smoke", "--jobs", "0"], "--jobs"),
        (["show", "smoke", "--output-dir", "."], "bench-smoke.json"),
        (["show", "nope"], "invalid choice"),
    ],
)
def test_bad_usage_is_one_line(arguments, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert complaint in message
    assert message.startswith("usage: ") or message.count("\n") == 1  # argparse tells both
