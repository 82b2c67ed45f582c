"""Plans of audits: what would be trained, and for how long."""

import pytest
from audit_task import Task, config

from hybrid_predict.audit import plan_audit
from hybrid_predict.runs.evidence import HYBRID

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def test_plan_learns_the_length_from_a_few_steps_and_counts_finished_arms(audited):
    before = {path: path.stat().st_mtime_ns for path in audited.rglob("*")}
    task = Task(accumulate_grad_batches=4, max_steps=-1, max_epochs=7)
    plan = plan_audit(task, config(seeds=3), audited)
    assert task.calls == [(HYBRID, 0)]
    assert "full 28, short 20, corrected 20, hybrid 19 to 28" in plan
    assert {path: path.stat().st_mtime_ns for path in audited.rglob("*")} == before
    assert "12 runs: 4 arms, 3 seeds; 8 done." in plan
