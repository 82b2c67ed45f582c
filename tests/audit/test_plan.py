"""Plans of audits: what would be trained, and for how long."""

import pytest
from audit_task import Task, config

from hybrid_predict.audit import plan_audit
from hybrid_predict.ledger import duration
from hybrid_predict.runs.evidence import ARMS, HYBRID

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
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
    assert plan.seconds == pytest.approx(5 * sum((*steps[:3], steps[0])) * plan.seconds_per_step)
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
    assert f"Training to come: at most {duration(plan.seconds)}, at" in str(plan)
    assert short in str(plan) and ("predicted steps fit" in str(plan)) == bool(short)


def test_plan_counts_finished_arms_and_changes_nothing(audited):
    before = {path: path.stat().st_mtime_ns for path in audited.rglob("*")}
    plan = plan_audit(Task(), config(seeds=3), audited)
    assert (plan.runs, plan.done) == (12, 8)
    assert plan.seconds == pytest.approx((18 + 12 + 12 + 18) * plan.seconds_per_step)
    assert {path: path.stat().st_mtime_ns for path in audited.rglob("*")} == before
