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


def test_mlflow_has_each_arm_and_each_verdict_and_tells_those_that_did_not_finish(tmp_path):
    states = "select name, status from runs order by start_time"
    audit(Task(), config(seeds=1, mlflow=True), tmp_path, observer=Interrupting())
    stopped = [("full, seed 0", "FINISHED"), ("short, seed 0", "FAILED"), ("audit", "FINISHED")]
    assert ask(tmp_path, states) == stopped
    result = audit(Task(), config(seeds=1, mlflow=True), tmp_path)
    query = "select run_uuid, status from runs where name = 'audit' order by start_time"
    _, (newest, status) = ask(tmp_path, query)
    assert status == "FINISHED"
    metrics = {key for (key,) in ask(tmp_path, "select distinct key from metrics")}
    measured = {"audit/metric", "audit/full_steps", "audit/seconds", "saving"}
    assert metrics >= measured | {f"metric/{arm}" for arm in ARMS}
    tags = dict(ask(tmp_path, f"select key, value from tags where run_uuid = '{newest}'"))
    assert tags["conclusion"] == result.verdict.headline
    assert result.verdict.text in tags["mlflow.note.content"]
    params = ask(tmp_path, "select run_uuid, key, value from params")
    arms = {run: value for run, key, value in params if key == "audit/arm"}
    assert set(arms.values()) == set(ARMS)
    for run, arm in arms.items():
        chosen = {key: value for each, key, value in params if each == run}
        assert chosen["audit/total_steps"] == ("12" if arm in (SHORT, CORRECTED) else "18")
        assert ("hybrid_predict/warmup_steps" in chosen) == (arm in (CORRECTED, HYBRID))
