"""Which cells studies run, with which rates, and what the tables make of them."""

import math
from dataclasses import asdict, dataclass, replace

import pytest

from benchmarks import load
from benchmarks.arms import ARMS, PLAIN, code_digest, recipe_digest, rules
from benchmarks.cells import CellPlan
from benchmarks.gains import Summary, geometric
from benchmarks.optimizers import Rates
from benchmarks.plan import Selection
from benchmarks.registry import STUDIES
from benchmarks.studies import rates, suites, yardsticks
from benchmarks.studies.suites import SUITES
from benchmarks.tasks import TASKS
from hybrid_predict.errors import ConfigError
from hybrid_predict.updates import UPDATES

BEST_RATE = 0.008
BEST_MULTIPLIER = 2.0


def invented(cell, gain=1.3):
    """Losses with a known optimum: steps help, the wrong rate hurts, the plug-in gains."""
    worth = cell.budget * (gain if cell.arm == "hybrid" else 1.0)
    off = abs(math.log(cell.rate / BEST_RATE)) + abs(math.log(cell.hidden / BEST_MULTIPLIER))
    loss = 10 - math.log(worth) + off + 0.01 * (cell.seed % 7)
    numbers = {"seconds": 2.0 * cell.budget, "memory": 1000, "code": "one"}
    steps = {"full_steps": cell.budget, "predicted_steps": 7, "undone_steps": 0}
    return {**asdict(cell), "loss": loss, **steps, **numbers}


@pytest.fixture(scope="module")
def core():
    """The plan of the suite, and all cells with invented results."""
    plan = suites.SUITES["core"].plan(Selection())
    done = {}
    while ready := plan.ready(done):
        assert not done.keys() & set(ready)
        done.update({cell: invented(cell) for cell in ready})
    return plan, done


def test_tuned_arms_take_the_best_of_their_grid(core):
    plan, done = core
    found = {line.arm: plan.rates(line, done) for line in plan.lines if line.task.name == "cnn"}
    assert found["hybrid"] == found["plain"] == Rates(BEST_RATE)
    assert found["muon"] == Rates(BEST_RATE, BEST_MULTIPLIER)
    assert found["hidden-x3"] == Rates(BEST_RATE, 3.0)
    smoke = suites.SUITES["smoke"].plan(Selection(tasks=("cnn",), arms=("muon",)))
    assert {line.arm for line in smoke.lines} == {*PLAIN, "muon"}
    assert {smoke.rates(line, {}) for line in smoke.lines} == {Rates(1e-3)}


@pytest.mark.parametrize(
    ("change", "argument"),
    [({"tasks": ("cnn", "nope")}, "tasks"), ({"arms": ("nope",)}, "arms")],
)
def test_unknown_names_are_refused(change, argument):
    with pytest.raises(ConfigError, match=argument):
        suites.SUITES["core"].plan(Selection(**change))


@pytest.mark.parametrize("change", [{"build": ARMS["muon"].build}, {"share": 0.7}])
def test_an_arm_that_trains_otherwise_is_another_cell(change):
    arm = ARMS["short"]
    assert recipe_digest(TASKS["inr"], arm) != recipe_digest(TASKS["inr"], replace(arm, **change))


def test_arms_with_the_plug_in_have_a_digest_of_its_rules(monkeypatch):
    def digests(name):
        arm = ARMS[name]
        return recipe_digest(TASKS["inr"], arm), code_digest(plugin=arm.plugin is not None)

    before = {name: digests(name) for name in ("hybrid", "corrected", "short", "muon")}
    assert before["hybrid"][1] == before["corrected"][1] != before["short"][1] == before["muon"][1]

    @dataclass(frozen=True, kw_only=True)
    class SpectralUpdate(UPDATES["spectral"]):
        longest: int = 4

    monkeypatch.setitem(UPDATES, "spectral", SpectralUpdate)
    changed = {name for name, digest in before.items() if digests(name) != digest}
    assert changed == {"hybrid", "corrected"}


CODE = '''
class Ledger:
    def __str__(self):
        return "3 steps"

    def count(self):
        """Count."""
        logger.info("counted %d", self.steps)
        self.steps += 1
'''


@pytest.mark.parametrize("words", ["3 steps", "Count.", "counted %d"])
def test_rows_hold_when_words_change(words):
    assert rules(CODE) == rules(CODE.replace(words, "other"))


@pytest.mark.parametrize(("rule", "other"), [("+= 1", "+= 2"), ("count(", "add("), ("3 steps", "")])
def test_rows_do_not_hold_when_rules_change(rule, other):
    code = CODE.replace("__str__", "steps")
    assert rules(code) != rules(code.replace(rule, other))


@pytest.mark.parametrize(
    ("name", "lines"), [("rates", rates.lines()), ("yardsticks", yardsticks.lines(Selection()))]
)
def test_the_plan_has_every_committed_run_once(name, lines):
    def place(cell):
        task = "stdlib" if cell.setting == "nanogpt" else cell.task  # its name is that of a file
        return replace(cell, recipe="", task=task)

    plan = CellPlan(lines)
    cells = list(plan.keys({}))
    assert len(cells) == len(set(cells))
    committed = {place(plan.key(row)) for row in load(f"{name}.jsonl")}
    settings = {line.setting for line in plan.lines}  # earlier commits had others
    known = {c for c in committed if c.task in plan.tasks and c.setting in settings}
    assert {place(cell) for cell in cells} == known


@pytest.mark.parametrize("name", ["core", "wide", "fresh"])
def test_committed_plain_runs_are_those_that_would_be_made(name):
    """So that a field that is new to recipes or arms does not make them strangers."""
    rows = load(f"bench-{name}.json")["runs"]
    tasks = {t for t in SUITES[name].tasks if "text_sha256" not in TASKS[t].to_dict()}
    plan = STUDIES[name].plan(Selection())
    plain = [row for row in rows if row["task"] in tasks and row["arm"] in PLAIN]
    assert plain and all(map(plan.holds, plain))
    assert not plan.holds({**plain[0], "recipe": "another"})
    assert not plan.holds({**plain[0], "arm": "hybrid", "code": "another"})


def test_figures_recover_what_was_put_in(core):
    summary = Summary(core[1].values())
    hybrid = summary.figures("cnn", "hybrid")
    assert hybrid.speedup.value == pytest.approx(1.3, rel=0.01)
    assert hybrid.speedup.low == pytest.approx(hybrid.speedup.high)
    assert hybrid.loss["n"] == 5
    assert summary.speedups("short")["cnn"].value == pytest.approx(1.0)
    assert geometric(summary.speedups("hybrid").values()).value == pytest.approx(1.3, rel=0.01)
