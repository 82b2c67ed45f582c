"""Yardsticks that others made, and models that grow: problems, targets, and the tables."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from benchmarks.cells import CellPlan
from benchmarks.gains import Summary
from benchmarks.plan import Selection
from benchmarks.studies import yardsticks
from benchmarks.tasks.language import nanogpt
from benchmarks.tasks.lightbench import LIGHTBENCH
from benchmarks.tasks.texts import characters
from benchmarks.train import Run
from hybrid_predict.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")

PROBLEMS = {problem.name: problem for problem in LIGHTBENCH}


@pytest.mark.parametrize("task", [*LIGHTBENCH, nanogpt()], ids=lambda task: task.name)
def test_a_problem_is_decided_by_its_seed_and_leaves_global_chance_alone(task, after_seeds):
    task = task.tiny()
    task.final_loss(task.model(0))  # imports draw random numbers of their own

    def use():
        model = task.model(1)
        batches = task.batches(1)
        losses = [float(task.loss(model, batch).detach()) for batch in islice(batches, 2)]
        return [*losses, task.final_loss(model)]

    first, second = after_seeds(use)
    assert first == second
    other = task.model(2)
    same = all(map(torch.equal, task.model(1).parameters(), other.parameters()))
    assert same == getattr(task, "fixed", False)


@pytest.mark.parametrize(
    ("name", "point"),
    [
        ("rosenbrock-trivial", torch.ones(2)),
        ("wide_linear-easy", torch.ones(32, 32).triu()),
        ("quadratic_varying_target-medium", torch.arange(512.0) / torch.arange(512.0).norm()),
    ],
)
def test_a_trap_is_solved_at_its_optimum_alone(name, point):
    problem = PROBLEMS[name]
    model = problem.model(0)
    assert problem.final_loss(model) > problem.target
    with torch.no_grad():
        model.x.copy_(point)
    assert problem.final_loss(model) == pytest.approx(0.0, abs=1e-7)


def test_a_text_file_becomes_numbers_of_its_characters(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("abca" * 500)
    text, vocabulary = characters(path)
    assert vocabulary == 3
    assert text.train[:4].tolist() == [0, 1, 2, 0]
    assert len(text.train) == 9 * len(text.val) == 1800
    with pytest.raises(ConfigError, match="a text file"):
        characters(tmp_path / "missing.txt")


@pytest.mark.parametrize(("target", "hit"), [(1e9, 1), (-1.0, None)])
def test_a_run_ends_when_its_target_is_reached(target, hit, monkeypatch):
    problem = replace(PROBLEMS["wide_linear-trivial"], steps=12)
    monkeypatch.setattr(type(problem), "target", target)
    lines = [replace(x, task=problem, steps=18) for x in yardsticks.lines(Selection())]
    line = next(x for x in lines if (x.setting, x.arm) == ("lightbench", "hybrid"))
    run = Run(next(CellPlan([line]).keys({})), problem)
    run.train()
    assert run.hit == run.result()["hit"] == hit
    assert run.full_steps == (hit or 12)


def reached(plain, arm):
    about = {"task": "wide_linear-trivial", "setting": "lightbench", "full_steps": 10, "steps": 10}
    others = {"seconds": 1.0, "code": "x", "loss": 1.0, "recipe": "", "rate": 1.0, "hidden": 1.0}
    pairs = [("plain", plain), *((name, arm) for name in yardsticks.COMPARED)]
    return [
        {**about, **others, "decay": True, "arm": name, "seed": seed, "hit": hit}
        for name, found in pairs
        for seed, hit in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("plain", "arm", "counts", "cell"),
    [
        ([10, None], [10, None], [0, 0, 1, 1, 0, 0], "| 10, 1 of 2 |"),
        ([10, None], [20, 5], [1, 0, 0, 0, 1, 0], "| 12 (later) |"),
        ([10, 10], [None, None], [0, 0, 0, 0, 0, 2], "| >10 (later) |"),
    ],
)
def test_an_arm_is_compared_with_plain_training_of_the_same_seed(plain, arm, counts, cell):
    rows = reached(plain, arm)
    line = yardsticks.never_worse(Summary(rows)).splitlines()[3]
    assert line == f"| hybrid (default) | {' | '.join(map(str, counts))} |"
    assert cell in yardsticks.traps(Summary(rows))
    some = Summary(rows[:3])  # some arms are not done
    assert yardsticks.traps(some) == "Not measured yet."
