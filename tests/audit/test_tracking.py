"""What an audit leaves in MLflow."""

import sqlite3
from contextlib import closing

import pytest
from audit_task import Interrupting, Task, config

from hybrid_predict.audit import audit
from hybrid_predict.runs.evidence import ARMS, CORRECTED, HYBRID, SHORT

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def test_mlflow_has_one_parent_also_after_more_seeds(audited, monkeypatch):
    task = Task()
    result = audit(task, config(mlflow=True, seeds=3), audited)
    assert task.calls == [(name, 2) for name in ARMS]
    assert len(result.results["runs"]) == 12
    with closing(sqlite3.connect(audited / "mlflow.db")) as connection:

        def ask(query):
            return connection.execute(query).fetchall()

        ((parent, status),) = ask("select run_uuid, status from runs where name = 'audit'")
        nested = ask("select value from tags where key = 'mlflow.parentRunId'")
        metrics = {key for (key,) in ask("select distinct key from metrics")}
        params = ask("select run_uuid, key, value from params")
        tags = dict(ask(f"select key, value from tags where run_uuid = '{parent}'"))
    assert (status, nested) == ("FINISHED", [(parent,)] * 12)
    measured = {"audit/metric", "audit/full_steps", "audit/seconds", "saving"}
    assert metrics >= measured | {f"metric/{arm}" for arm in ARMS}
    assert not {"audit/steps", "audit/seed"} & metrics  # parameters make no charts
    assert tags["conclusion"] == result.verdict.headline
    assert result.verdict.text in tags["mlflow.note.content"]
    arms = {run: value for run, key, value in params if key == "audit/arm"}
    assert sorted(arms.values()) == sorted(3 * ARMS)
    for run, arm in arms.items():
        chosen = {key: value for each, key, value in params if each == run}
        assert chosen["audit/total_steps"] == ("12" if arm in (SHORT, CORRECTED) else "18")
        assert ("hybrid_predict/warmup_steps" in chosen) == (arm in (CORRECTED, HYBRID))

    def refused(*args):
        raise AssertionError("asked MLflow's default store")

    # With nothing left to train, MLflow would make a database in the current directory.
    monkeypatch.setattr("mlflow.flush_async_logging", refused)
    assert audit(task, config(mlflow=True, seeds=3), audited).results["runs"]
    assert len(task.calls) == 4


def test_mlflow_marks_runs_that_did_not_finish(tmp_path):
    """Interrupted by the user, failed, or left behind by a process that was killed."""
    options = {"seeds": 1, "mlflow": True}

    def statuses():
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
            query = """
                select name, status, value from runs left join tags
                on runs.run_uuid = tags.run_uuid and key = 'hybrid_predict.status'
                order by start_time"""
            return connection.execute(query).fetchall()

    audit(Task(), config(**options), tmp_path, observer=Interrupting())
    stopped = [("audit", "KILLED", None), ("full, seed 0", "FINISHED", None),
               ("short, seed 0", "KILLED", "stopped")]  # fmt: skip
    assert statuses() == stopped
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:  # as after SIGKILL
        connection.execute("update runs set status = 'RUNNING' where name = 'short, seed 0'")
        connection.commit()

    def broken(arm):
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        audit(broken, config(**options), tmp_path)
    assert statuses() == [
        ("audit", "FAILED", None), stopped[1], ("short, seed 0", "KILLED", "killed"),
        ("short, seed 0", "FAILED", "failed: OSError"),
    ]  # fmt: skip
