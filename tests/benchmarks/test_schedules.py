"""The learning-rate schedules that a recipe may name."""

from dataclasses import replace

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.arms import ARMS
from benchmarks.plan import recipe_digest
from benchmarks.tasks import TASKS, Recipe
from benchmarks.tasks.schedules import SCHEDULES, linear_schedule
from hybrid_predict import ConfigError


def factors(name, total, warmup):
    factor = SCHEDULES[name](total, warmup)
    return [factor(step) for step in range(total)]


@pytest.mark.parametrize("total", [12, 400])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_rises_to_one_and_never_above(name, warmup, total):
    found = factors(name, total, warmup)
    top = found.index(max(found))
    assert found[top] == pytest.approx(1.0, abs=0.01)
    assert min(found) > 0
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)
    assert top <= max(1, warmup * total)
    after = SCHEDULES[name](total, warmup)(total)
    assert 0 <= after <= found[-1]


def test_one_cycle_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = OneCycleLR(optimizer, 1.0, total_steps=50, pct_start=0.3, cycle_momentum=False)
    rates = []
    for _ in range(50):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors("one-cycle", 50, 0.3) == pytest.approx(rates, abs=1e-12)


def test_the_stable_schedule_falls_over_the_last_fifth():
    found = factors("warmup-stable-decay", 100, 0.1)
    assert found[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert set(found[10:81]) == {1.0}
    assert found[81:] == pytest.approx([k / 20 for k in range(19, 0, -1)])


def test_the_constant_schedule_stays_at_its_peak():
    assert set(factors("constant", 30, 0.0)) == {1.0}
    assert factors("constant", 30, 0.1)[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])


def test_a_recipe_is_linear_unless_it_says_otherwise():
    recipe = Recipe(learning_rate=1.0, rates=(1.0,), warmup_fraction=0.2)
    steps = range(40)
    assert [*map(recipe.factor(40), steps)] == [*map(linear_schedule(40, 0.2), steps)]
    assert replace(recipe, schedule="constant").factor(40)(39) == 1.0


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ConfigError, match=r"schedule.*warmup-stable-decay.*'cubic'"):
        Recipe(learning_rate=1.0, rates=(1.0,), schedule="cubic")


def test_a_schedule_makes_another_run_unless_it_is_the_linear_one():
    task, arm = TASKS["cnn"], ARMS["short"]
    assert "schedule" not in task.to_dict()["recipe"]
    other = replace(task, recipe=replace(task.recipe, schedule="constant"))
    assert other.to_dict()["recipe"]["schedule"] == "constant"
    assert recipe_digest(task, arm) != recipe_digest(other, arm)
