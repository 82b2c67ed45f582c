"""What an audit leaves in MLflow."""

import sqlite3
from contextlib import closing

import pytest
from audit_task import Interrupting, Task, config

from hybrid_predict.audit import audit
from hybrid_predict.runs.evidence import ARMS, CORRECTED, HYBRID, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def ask(folder, query):
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return connection.execute(query).fetchall()


def test_mlflow_has_one_parent_also_after_more_seeds(audited):
    task = Task()
    result = audit(task, config(mlflow=True, seeds=3), audited)
    assert task.calls == [(name, 2) for name in ARMS]
    query = "select run_uuid, status from runs where name = 'audit'"
    ((parent, status),) = ask(audited, query)
    nested = ask(audited, "select value from tags where key = 'mlflow.parentRunId'")
    assert (status, nested) == ("FINISHED", [(parent,)] * 12)
    metrics = {key for (key,) in ask(audited, "select distinct key from metrics")}
    measured = {"audit/metric", "audit/full_steps", "audit/seconds", "saving"}
    assert metrics >= measured | {f"metric/{arm}" for arm in ARMS}
    tags = dict(ask(audited, f"select key, value from tags where run_uuid = '{parent}'"))
    assert tags["conclusion"] == result.verdict.headline
    assert result.verdict.text in tags["mlflow.note.content"]
    params = ask(audited, "select run_uuid, key, value from params")
    arms = {run: value for run, key, value in params if key == "audit/arm"}
    assert sorted(arms.values()) == sorted(3 * ARMS)
    for run, arm in arms.items():
        chosen = {key: value for each, key, value in params if each == run}
        assert chosen["audit/total_steps"] == ("12" if arm in (SHORT, CORRECTED) else "18")
        assert ("hybrid_predict/warmup_steps" in chosen) == (arm in (CORRECTED, HYBRID))


def test_mlflow_tells_runs_that_did_not_finish(tmp_path):
    query = "select name, status from runs order by start_time"
    audit(Task(), config(seeds=1, mlflow=True), tmp_path, observer=Interrupting())
    stopped = [("audit", "KILLED"), ("full, seed 0", "FINISHED"), ("short, seed 0", "FAILED")]
    assert ask(tmp_path, query) == stopped
    audit(Task(), config(seeds=1, mlflow=True), tmp_path)
    assert {name: status for name, status in ask(tmp_path, query)}["audit"] == "FINISHED"
