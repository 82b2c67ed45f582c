"""Yardsticks that others made: their problems, runs up to a target, and the tables."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from benchmarks.plan import Selection
from benchmarks.yardsticks import table, yardsticks
from benchmarks.yardsticks.lightbench import LIGHTBENCH
from benchmarks.yardsticks.nanogpt import characters
from benchmarks.yardsticks.plan import Case, Watched, YardstickPlan
from hybrid_predict.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [case for y in yardsticks().values() for case in y.cases]


def only(yardstick, *tasks, arms, steps=12):
    """The yardstick with a few tasks of a few steps."""
    cases = [replace(yardstick.case(name)) for name in tasks]
    shorter = tuple(replace(case, task=replace(case.task, steps=steps)) for case in cases)
    return replace(yardstick, cases=shorter, arms=arms)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task.name)
def test_a_case_is_decided_by_its_seed_and_leaves_global_chance_alone(case, after_seeds):
    task = case.task.tiny()
    task.final_loss(task.model(0))  # imports draw random numbers of their own

    def use():
        model, batches = task.model(1), task.batches(1)
        losses = [float(task.loss(model, batch).detach()) for batch in islice(batches, 2)]
        return [*losses, task.final_loss(model)]

    first, second = after_seeds(use)
    assert first == second
    other = task.model(2)
    same = all(map(torch.equal, task.model(1).parameters(), other.parameters()))
    assert same == (case.fixed)


@pytest.mark.parametrize(
    ("task", "point"),
    [
        ("rosenbrock-trivial", torch.ones(2)),
        ("wide_linear-easy", torch.ones(32, 32).triu()),
        ("quadratic_varying_target-medium", torch.arange(512.0) / torch.arange(512.0).norm()),
    ],
)
def test_a_trap_is_solved_at_its_optimum_alone(task, point):
    case = LIGHTBENCH.case(task)
    model = case.task.model(0)
    assert case.task.final_loss(model) > case.target
    with torch.no_grad():
        model.x.copy_(point)
    assert case.task.final_loss(model) == pytest.approx(0.0, abs=1e-7)


def test_a_text_file_becomes_numbers_of_its_characters(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("abca" * 500)
    read = characters(path)
    assert (read.count, read.vocabulary, read.published) == (2000, 3, False)
    assert read.text.train[:4].tolist() == [0, 1, 2, 0]
    assert len(read.text.train) == 9 * len(read.text.val) == 1800
    with pytest.raises(ConfigError, match="a text file"):
        characters(tmp_path / "missing.txt")


@pytest.mark.parametrize(("target", "hit"), [(1e9, 3), (-1.0, None)])
def test_a_run_ends_when_its_target_is_reached(target, hit):
    yardstick = only(LIGHTBENCH, "wide_linear-trivial", arms=("hybrid",))
    case = Case(task=yardstick.cases[0].task, target=target, every=3)
    run = Watched(next(yardstick.cells(1)), case, target)
    run.train()
    assert run.hit == hit
    assert run.full_steps == (hit or 12)


def measured(*chosen, seeds):
    """The rows of yardsticks."""
    plan = YardstickPlan({each.name: each for each in chosen}, Selection(seeds=seeds))
    return [plan.work(cell) for cell in plan.keys({})]


@pytest.fixture(scope="module")
def made():
    return measured(
        only(LIGHTBENCH, "wide_linear-trivial", "rosenbrock-trivial", arms=LIGHTBENCH.arms),
        seeds=2,
    )


def test_tables_have_every_task_and_arm(made):
    texts = {name: block() for name, block in table.blocks(made).items()}
    assert "lightbench 2" in texts["yardsticks source"]
    assert texts["yardsticks nanogpt"] == "Not measured yet."
    assert "| `rosenbrock-trivial` | 1e-09 | 0.14105 | won | 1 |" in texts["yardsticks lightbench"]


def reached(plain, arm):
    about = {"task": "wide_linear-trivial", "setting": "lightbench", "full_steps": 10}
    times = {"seconds": 1.0, "elapsed": 1.0, "predicted_steps": 0, "code": "x", "loss": 1.0}
    pairs = [("plain", plain), *((name, arm) for name in LIGHTBENCH.arms if name != "plain")]
    return [
        {**about, **times, "arm": name, "seed": seed, "hit": hit}
        for name, found in pairs for seed, hit in enumerate(found)
    ]  # fmt: skip


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
    line = table.never_worse(rows).splitlines()[3]
    assert line == f"| hybrid (default) | {' | '.join(map(str, counts))} |"
    assert cell in table.traps(rows)
    assert table.traps(rows[:3]) == "Not measured yet."  # some arms are not done
