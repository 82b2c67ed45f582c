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


def test_mlflow_has_each_arm_and_the_verdict_and_tells_those_that_did_not_finish(tmp_path):
    states = "select name, status from runs order by start_time"
    audit(Task(), config(seeds=1, mlflow=True), tmp_path, observer=Interrupting())
    stopped = [("full, seed 0", "FINISHED"), ("short, seed 0", "FAILED")]
    assert ask(tmp_path, states) == stopped
    result = audit(Task(), config(seeds=1, mlflow=True), tmp_path)
    finished = [(f"{name}, seed 0", "FINISHED") for name in (SHORT, CORRECTED, HYBRID)]
    assert ask(tmp_path, states) == stopped + finished
    tags = dict(ask(tmp_path, "select key, value from experiment_tags"))
    assert tags["outcome"] == result.outcome.value
    assert result.verdict.headline in tags["mlflow.note.content"]
    assert result.verdict.text in tags["mlflow.note.content"]
    again = audit(Task(), config(seeds=1, mlflow=True, retain=0.5), tmp_path)
    assert ask(tmp_path, states) == stopped + finished
    (note,) = ask(tmp_path, "select value from experiment_tags where key = 'mlflow.note.content'")
    assert again.verdict.text in note[0]
    metrics = {key for (key,) in ask(tmp_path, "select distinct key from metrics")}
    assert metrics >= {"audit/metric", "audit/full_steps", "audit/seconds"}
    params = ask(tmp_path, "select run_uuid, key, value from params")
    arms = {run: value for run, key, value in params if key == "audit/arm"}
    assert set(arms.values()) == set(ARMS)
    for run, arm in arms.items():
        chosen = {key: value for each, key, value in params if each == run}
        assert chosen["audit/total_steps"] == ("12" if arm in (SHORT, CORRECTED) else "18")
        assert ("hybrid_predict/warmup_steps" in chosen) == (arm in (CORRECTED, HYBRID))
