"""Yardsticks that others made: their problems, runs up to a target, and the tables."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from benchmarks.arms import ARMS
from benchmarks.plan import as_cell
from benchmarks.rates.study import make_missing
from benchmarks.tasks.schedules import SCHEDULES
from benchmarks.yardsticks import (
    NAMES,
    __main__,
    hits,
    small,
    small_table,
    studies,
    study,
    table,
    yardsticks,
)
from benchmarks.yardsticks.algoperf import ALGOPERF
from benchmarks.yardsticks.deepobs import DEEPOBS, FUNCTIONS, quadratic
from benchmarks.yardsticks.lightbench import LIGHTBENCH
from benchmarks.yardsticks.nanogpt import CHARACTERS, characters, nanogpt
from benchmarks.yardsticks.study import Case, Watched
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
    assert same == (case.fixed or task.name.startswith(("quadratic_deep", "two_d")))


@pytest.mark.parametrize(
    ("name", "point", "value"),
    [
        ("rosenbrock", (1, 1), 0.0),
        ("beale", (3, 0.5), 0.0),
        ("branin", (torch.pi, 2.275), 0.397887),
    ],
)
def test_functions_have_their_minima(name, point, value):
    function = FUNCTIONS[name][0]
    x, y = torch.tensor(point, dtype=torch.float64)
    assert float(function(x, y)) == pytest.approx(value, abs=1e-6)
    assert float(function(x + 0.1, y)) > value


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


def test_the_quadratic_has_the_spectrum_of_a_deep_net():
    hessian, train, test = quadratic()
    values = torch.linalg.eigvalsh(hessian)
    assert ((values > 0) & (values < 1)).sum() == 90
    assert ((values > 30) & (values < 60)).sum() == 10
    assert not torch.equal(train, test)
    least = DEEPOBS.cases[0].task.judged(test.mean(0))
    assert DEEPOBS.published("quadratic_deep") == f"least possible: {float(least):.4f}"


@pytest.mark.parametrize(("parity", "right"), [(True, [0.0]), (False, [0.0, 1.0, 1.0])])
def test_bits_and_their_exclusive_or(parity, right):
    length = 6 if parity else 3
    task = XorTask(name="x", title="x", steps=12, recipe=study.constant(1e-3), parity=parity,
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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("yardsticks") / study.FILE
    chosen = [
        only(LIGHTBENCH, "wide_linear-trivial", "rosenbrock-trivial", arms=LIGHTBENCH.arms),
        only(ALGOPERF, "mnist", arms=("plain", "auto")),
        only(DEEPOBS, "two_d_beale", arms=DEEPOBS.arms),
    ]
    rows = [yardstick.measure(cell) for yardstick in chosen for cell in yardstick.cells(2)]
    store = make_missing(path, as_cell, [], print, 1, print)
    for row in rows:
        store.add(row)
    return path, chosen, rows


@pytest.mark.slow
def test_finished_runs_are_not_made_again(made):
    path, chosen, rows = made
    again = []
    for yardstick in chosen:
        make_missing(path, as_cell, yardstick.cells(2), yardstick.measure, 1, again.append)
    assert not again
    assert {row["setting"] for row in rows} == {"lightbench", "algoperf", "deepobs"}
    assert all(row["elapsed"] > 0 for row in rows)


def test_tables_have_every_task_and_arm(made):
    texts = {name: block() for name, block in table.blocks(made[2]).items()}
    assert "deepobs 2" in texts["yardsticks source"]
    assert texts["yardsticks nanogpt"].count("\n") == 1
    assert texts["yardsticks deepobs"].count("`two_d_beale`") == len(DEEPOBS.arms)
    assert texts["yardsticks deepobs"].count("least possible: 0 ") == 1
    assert "| `mnist` | plain, T | 0 of 2 | >12 | n/a |" in texts["yardsticks algoperf"]
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
    line = hits.never_worse(rows).splitlines()[3]
    assert line == f"| hybrid (default) | {' | '.join(map(str, counts))} |"
    assert cell in hits.traps(rows)
    assert hits.traps(rows[:3]).count("\n") == 1  # some arms are not done


def test_the_default_is_plain_training_where_there_are_no_matrices():
    """A vector is not corrected and not predicted, so that nothing can be worse."""
    yardstick = only(LIGHTBENCH, "scale_invariant-trivial", arms=("plain", "hybrid"), steps=60)
    plain, hybrid = map(yardstick.measure, yardstick.cells(1))
    assert plain["loss"] == hybrid["loss"]
    assert hybrid["predicted_steps"] == 0


def test_a_protocol_of_a_forecast_has_its_rate_and_its_first_hit(monkeypatch):
    monkeypatch.setattr(small, "STEPS", 40)
    row = small.measure(("nino", "corrected", 0))
    assert row["steps"] == [20, 40]
    for name, protocol in small.PROTOCOLS.items():
        recipe = small.task(protocol).recipe
        assert (recipe.betas, recipe.gradient_clip) == ((0.9, 0.999), None), name
    plain = {**row, "arm": "plain", "losses": [3.0, 1.0]}
    rows = [plain, {**row, "losses": [1.5, 0.5]}]
    assert (small_table.target(plain), small_table.first_hit(rows[1], 2.0)) == (2.0, 20)
    assert "| plain | 1 of 1 | 40 |" in small_table.table(rows)
    assert "| corrected | 1 of 1 | 20 |" in small_table.table(rows)
    assert len(set(small.keys(2))) == 2 * len(small.PROTOCOLS) * len(small.ARMS)


def test_the_ratio_up_to_a_target_is_a_mean_over_seeds():
    rows = [row for row in reached([10, 40], [5, 5]) if row["arm"] in ("plain", "auto")]
    assert "| auto | 2 of 2 | 5 | 4.00 |" in hits.targets(rows)


@pytest.mark.slow
def test_the_command_knows_its_yardsticks(tmp_path, monkeypatch, capsys):
    assert {*NAMES, "small"} == set(studies())
    tiny = {"algoperf": only(ALGOPERF, "mnist", arms=("plain",)).study}
    monkeypatch.setattr(__main__, "studies", lambda text=None: tiny)
    monkeypatch.setattr("sys.argv", ["x", "algoperf", "--seeds", "1", "--folder", str(tmp_path)])
    __main__.main()
    assert "mnist, plain, seed 0: 12 full steps" in capsys.readouterr().out
    assert len((tmp_path / study.FILE).read_text().splitlines()) == 1
