"""Plans of audits: what would be trained, and for how long."""

import re

import pytest
from audit_task import UNGATED, Task, config

from hybrid_predict.audit import audit, plan_audit, plan_search
from hybrid_predict.ledger import duration
from hybrid_predict.runs.evidence import ARMS, HYBRID, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_steps": 6}, (6, 4, 4, 4)),
        ({"max_steps": -1, "max_epochs": 7}, (112, 80, 80, 75)),
        ({"accumulate_grad_batches": 4, "max_steps": 30}, (30, 20, 20, 20)),
    ],
    ids=str,
)
def test_plan_learns_the_length_from_a_few_steps(tmp_path, options, steps):
    task = Task(**options)
    plan = plan_audit(task, config(seeds=5), tmp_path / "none")
    assert task.calls == [(HYBRID, 0)]
    assert plan.full_steps == dict(zip(ARMS, steps, strict=True))
    assert (plan.runs, plan.done) == (20, 0)
    assert plan.seconds == pytest.approx(5 * sum(steps) * plan.seconds_per_step)
    assert list(tmp_path.iterdir()) == []
    assert "20 runs: 4 arms, 5 seeds; 0 done." in str(plan)


@pytest.mark.parametrize(
    ("steps", "least", "short"),
    [(40, 40, "only 0 of 13 predicted steps fit between 40 warm-up steps"), (300, 200, "")],
)
def test_plan_counts_the_warm_up_that_skill_needs(tmp_path, steps, least, short):
    plan = plan_audit(Task(max_steps=steps), config(seeds=5, hybrid={}), tmp_path)
    assert plan.full_steps[HYBRID] == least
    ends = f"{least} to {steps}" if least < steps else f"{least}"
    assert f"hybrid {ends}." in str(plan)
    extra = 5 * (steps - least) * plan.seconds_per_step
    assert plan.most_seconds == pytest.approx(plan.seconds + extra)
    times = dict.fromkeys((duration(plan.seconds), duration(plan.most_seconds)))
    assert f"Training to come: about {' to '.join(times)}, at" in str(plan)
    assert short in str(plan) and ("predicted steps fit" in str(plan)) == bool(short)


def test_a_gated_run_takes_at_least_as_many_full_steps_as_planned(tmp_path):
    options = {"seeds": 1, "hybrid": {}}
    plan = plan_audit(Task(max_steps=60), config(**options), tmp_path / "none")
    result = audit(Task(max_steps=60), config(**options), tmp_path)
    taken = {run["arm"]: run["full_steps"] for run in result.results["runs"]}
    assert taken[HYBRID] >= plan.full_steps[HYBRID]
    assert taken[SHORT] == plan.full_steps[SHORT]


def test_plan_of_auto_is_the_most_that_it_may_take(tmp_path):
    options = {"speedup": "auto", "seeds": 1, "hybrid": {}}
    plan = plan_audit(Task(max_steps=60), config(**options), tmp_path)
    assert set(plan.full_steps.values()) == {60}
    assert "full 60, hybrid at most 60, short at most 60, corrected at most 60." in str(plan)
    searched = plan_search(Task(max_steps=60), config(**options, speedups=[1.5, "auto"]))
    assert (searched.tests, searched.runs, searched.done) == (3, 6, 0)


def test_plan_counts_finished_arms_and_changes_nothing(audited):
    before = {path: path.stat().st_mtime_ns for path in audited.rglob("*")}
    plan = plan_audit(Task(), config(seeds=3), audited)
    assert (plan.runs, plan.done) == (12, 8)
    assert plan.seconds == pytest.approx((18 + 12 + 12 + 12) * plan.seconds_per_step)
    assert {path: path.stat().st_mtime_ns for path in audited.rglob("*")} == before


@pytest.mark.parametrize(
    ("hybrid", "words"),
    [
        ({}, "Hybrid arm: it would be plain training: batches are too small"),
        ({"predictors": UNGATED}, "max_overhead allows no corrected updates"),
    ],
    ids=["gated", "not gated"],
)
def test_plan_says_what_to_type_where_corrections_do_not_fit(tmp_path, hybrid, words):
    def planned(limit):
        options = config(seeds=5, hybrid={"max_overhead": limit, **hybrid})
        return str(plan_audit(Task(), options, tmp_path / "none"))

    told = planned(1e-6)
    wanted = r"set batches of at least [\d,]+ samples .*or max_overhead=([\d.e-]+\d)"
    match = re.search(wanted, told)
    assert words in told and match is not None
    enough = planned(float(match[1]))
    assert words not in enough and "set batches" not in enough
