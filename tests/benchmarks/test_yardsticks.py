"""Yardsticks that others made: their problems, runs up to a target, and the tables."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from benchmarks.arms import ARMS
from benchmarks.plan import Selection
from benchmarks.tasks.schedules import SCHEDULES
from benchmarks.yardsticks import table, yardsticks
from benchmarks.yardsticks.lightbench import LIGHTBENCH
from benchmarks.yardsticks.nanogpt import CHARACTERS, characters, nanogpt
from benchmarks.yardsticks.plan import Case, Watched, YardstickPlan, constant
from benchmarks.yardsticks.xor import XorTask
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
        ("beale-trivial", torch.zeros(2)),
        ("rastrigin-trivial", torch.zeros(2)),
        ("plateau_navigation-easy", torch.zeros(2)),
        ("layer_wise_scale-medium", torch.zeros(3 * 1024)),
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


@pytest.mark.parametrize(("parity", "right"), [(True, [0.0]), (False, [0.0, 1.0, 1.0])])
def test_bits_and_their_exclusive_or(parity, right):
    length = 6 if parity else 3
    task = XorTask(name="x", title="x", steps=12, recipe=constant(1e-3), parity=parity,
                   length=length)  # fmt: skip
    bits, targets = next(task.batches(0))
    known = (bits == torch.tensor([1, 0, 1, 1, 1, 0])).all(1)
    assert bits.shape == (256, 6)
    assert known.any()
    assert targets[known].reshape(-1, len(right))[0].tolist() == right


def test_a_text_file_becomes_numbers_of_its_characters(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("abca" * 500)
    read = characters(path)
    assert (read.count, read.vocabulary, read.published) == (2000, 3, False)
    assert read.text.train[:4].tolist() == [0, 1, 2, 0]
    assert len(read.text.train) == 9 * len(read.text.val) == 1800
    task = nanogpt(path).cases[0].task
    assert task.name == "input"
    assert "path" not in task.to_dict()
    assert characters(None).count == CHARACTERS
    for wrong in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(ConfigError, match="a text file"):
            characters(wrong)
    path.with_stem("short").write_text("abc")
    with pytest.raises(ConfigError, match=r"1,000 characters.*3"):
        characters(path.with_stem("short"))


def test_the_schedule_and_the_model_are_nanogpts():
    task = nanogpt().cases[0].task
    factor = task.recipe.factor(2000)
    assert [factor(99), factor(1050), factor(2000)] == pytest.approx([1.0, 0.55, 0.1])
    assert factor(0) == pytest.approx(0.01)
    assert SCHEDULES["cosine"](100, 0.0)(50) == pytest.approx(0.55)
    model = task.model(0)
    names = dict(model.named_parameters())
    assert not [name for name in names if name.endswith("bias")]
    assert model.head.weight is model.token_embedding.weight


def test_every_arm_may_take_all_steps_up_to_a_target():
    cells = list(LIGHTBENCH.cells(2))
    assert {cell.budget for cell in cells if cell.task.startswith("wide")} == {4000}
    fixed = [cell for cell in cells if cell.task == "rosenbrock-trivial"]
    assert {cell.seed for cell in fixed} == {0}
    short = [cell for cell in nanogpt().cells(1) if ARMS[cell.arm].share < 1]
    assert {cell.budget for cell in short} == {1333}


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


def test_rows_have_the_name_of_their_yardstick_and_seconds_of_the_clock(made):
    assert {row["setting"] for row in made} == {"lightbench"}
    assert all(row["elapsed"] > 0 for row in made)


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
        ([10, 20], [5, 10], [0, 2, 0, 0, 0, 0], "| 8 |"),
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


def test_the_default_is_plain_training_where_there_are_no_matrices():
    """A vector is not corrected and not predicted, so that nothing can be worse."""
    yardstick = only(LIGHTBENCH, "scale_invariant-trivial", arms=("plain", "hybrid"), steps=60)
    plain, hybrid = measured(yardstick, seeds=1)
    assert plain["loss"] == hybrid["loss"]
    assert hybrid["predicted_steps"] == 0
