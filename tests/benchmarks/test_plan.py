"""Which cells the benchmark runs, with which rates."""

import json
import math
from dataclasses import dataclass, replace

import pytest

from benchmarks import suites
from benchmarks.arms import ARMS, PLAIN
from benchmarks.digests import code_digest, recipe_digest
from benchmarks.figures import Summary
from benchmarks.optimizers import Rates
from benchmarks.plan import TUNING, Selection, to_row
from benchmarks.step_cost import WAYS
from benchmarks.suites import SETTINGS, SUITES, SuitePlan, select
from benchmarks.table import blocks
from benchmarks.tasks import TASKS
from hybrid_predict.errors import ConfigError
from hybrid_predict.updates import UPDATES

BEST_RATE, BEST_MULTIPLIER = 0.008, 2.0


def chosen(suite, seeds=None, **names):
    """The suite with other tasks, settings, arms or seeds."""
    return select(suite, Selection(**{k: tuple(v) for k, v in names.items()}, seeds=seeds))


def invented(cell, gain=1.3):
    """Losses with a known optimum: steps help, the wrong rate hurts, the plug-in gains."""
    worth = cell.budget * (gain if cell.arm == "hybrid" else 1.0)
    off = abs(math.log(cell.rate / BEST_RATE)) + abs(math.log(cell.hidden / BEST_MULTIPLIER))
    loss = 10 - math.log(worth) + off + 0.01 * (cell.seed % 7)
    numbers = {"seconds": 2.0 * cell.budget, "memory": 1000, "code": "one"}
    steps = {"full_steps": cell.budget, "predicted_steps": 7, "undone_steps": 0}
    return to_row(cell, {"loss": loss, **steps, **numbers})


def finished(plan, outcome=invented):
    """All cells of a plan with invented results, in the order in which they become ready."""
    done = {}
    while ready := plan.ready(done):
        assert not done.keys() & set(ready)
        done.update({cell: outcome(cell) for cell in ready})
    return done


@pytest.fixture(scope="module")
def core():
    plan = SuitePlan(SUITES["core"])
    return plan, finished(plan)


@pytest.mark.parametrize("name", [name for name in SUITES])
def test_number_of_cells_is_known_before_they_are(name):
    plan = SuitePlan(SUITES[name])
    assert len(finished(plan)) == len(plan)


def test_tuned_settings_take_the_best_of_their_grid(core):
    plan, done = core
    found = {s: plan.rates("gpt-0.2m", s, "hybrid", done) for s in SETTINGS}
    assert found["tuned"] == Rates(BEST_RATE)
    assert found["default-decay"] == Rates(TASKS["gpt-0.2m"].recipe.learning_rate)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"tasks": ["cnn", "nope"]}, "tasks"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_unknown_names_are_refused(change, argument):
    with pytest.raises(ConfigError, match=argument):
        SuitePlan(chosen(SUITES["core"], **change))


@pytest.mark.parametrize(
    "change", [{"build": ARMS["muon"].build}, {"share": 0.7}, {"scheduled": False}]
)
def test_an_arm_that_trains_otherwise_is_another_cell(change):
    arm = ARMS["short"]
    assert recipe_digest(TASKS["inr"], arm) != recipe_digest(TASKS["inr"], replace(arm, **change))


def test_arms_with_the_plug_in_have_a_digest_of_its_rules(monkeypatch):
    def digests(name):
        return recipe_digest(TASKS["inr"], ARMS[name]), code_digest(name)

    before = {name: digests(name) for name in ("hybrid", "corrected", "short", "muon")}
    assert before["hybrid"][1] == before["corrected"][1] != before["short"][1] == before["muon"][1]

    @dataclass(frozen=True, kw_only=True)
    class SpectralUpdate(UPDATES["spectral"]):
        longest: int = 4

    monkeypatch.setitem(UPDATES, "spectral", SpectralUpdate)
    changed = {name for name, digest in before.items() if digests(name) != digest}
    assert changed == {"hybrid", "corrected"}


def compiled(plan, done):
    environment = {"torch": "2", "python": "3", "cpu_count": 2}
    ways = {way: {"ratio": 2.0, "quartiles": [1.9, 2.1], "memory": 0} for way in WAYS}
    steps = {task: {"parameters": 9, "plain_ms": 100.0, **ways} for task in ("cnn", "inr")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(suites, "environment", lambda: environment)
        patched.setattr(plan, "measured_steps", lambda: steps)
        return suites.compiled("core", plan, plan.chosen(done), {"steps": steps})


def test_figures_recover_what_was_put_in(core):
    plan, done = core
    results = json.loads(json.dumps(compiled(plan, done), allow_nan=False))
    summary = Summary(results)
    hybrid = summary.figures("cnn", "tuned", "hybrid")
    assert hybrid.speedup.value == pytest.approx(1.3, rel=0.01)
    assert hybrid.speedup.low == pytest.approx(hybrid.speedup.high)
    assert hybrid.loss["n"] == 5
    assert summary.figures("cnn", "tuned", "short").speedup.value == pytest.approx(1.0)
    overall = summary.overall("tuned", "hybrid")
    assert overall.value == pytest.approx(1.3, rel=0.01)
    assert overall.tasks == 3


def test_tables_name_every_task_setting_and_arm(core):
    plan, done = core
    made = {name: make() for name, make in blocks(compiled(plan, done)).items()}
    wanted = ("source", "headline", "mechanisms", "arms", "losses", "steps")
    assert list(made) == [f"bench core {name}" for name in wanted]
    assert all(f"`{task}`" in made["bench core arms"] for task in plan.tasks)
    others = plan.arms("tuned")[len(PLAIN) :]
    assert all(ARMS[arm].title in made["bench core arms"] for arm in others)
    assert "5 paired seeds" in made["bench core source"]
    assert "hint" not in made["bench core source"]
    runs = [cell for cell in done if cell.setting != TUNING and cell.seed == 0]
    assert made["bench core losses"].count("\n") == 1 + len(runs)
    for row in ("`cnn` | corrected | 533 | 7 | 106.6", "`gpt-0.2m` | corrected | 400 | 7 | n/a"):
        assert f"\n| {row} |" in made["bench core mechanisms"]
