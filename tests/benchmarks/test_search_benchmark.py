"""The audit's search against a sweep: the same runs, the same test, and what the tables say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import UNGATED

from benchmarks.search import SUBJECTS, compiled, subjects
from benchmarks.search.plan import compare, judged
from benchmarks.search.subjects import TaskSubject, configured, subject
from hybrid_predict.audit import AuditConfig, AuditOutcome

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "search.json"
SPEEDUPS = (1.5, 3.0)


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.slow
def test_the_search_reads_the_runs_of_the_sweep(tmp_path: Any) -> None:
    chosen = TaskSubject("mlp", 18)
    config = replace(configured(1, SPEEDUPS), hybrid={"predictors": UNGATED})
    found = compare(chosen, config, tmp_path)
    assert [(r["arm"], r["speedup"], r["full_steps"]) for r in found["runs"]] == [
        ("full", 1.5, 18), ("short", 1.5, 12), ("corrected", 1.5, 12), ("hybrid", 1.5, 12),
        ("short", 3.0, 6), ("corrected", 3.0, 6), ("hybrid", 3.0, 6),
    ]  # fmt: skip
    assert found["search"]["runs"] <= len(found["runs"])
    assert {t["seeds"] for t in found["search"]["tried"]} == {1}
    assert {v["outcome"] for v in found["sweep"]} == {AuditOutcome.UNDECIDED.value}


def test_a_results_file_has_what_its_runs_have() -> None:
    committed = json.loads(COMMITTED.read_text())
    assert compiled({str(row["name"]): row for row in subjects(committed)}) == committed


@pytest.mark.parametrize("name", json.loads(COMMITTED.read_text())["subjects"])
def test_committed_verdicts_are_those_that_would_be_given(name: str) -> None:
    found = json.loads(COMMITTED.read_text())["subjects"][name]
    kept = {**found["config"], "speedups": tuple(found["config"]["speedups"])}
    again = judged(found["runs"], AuditConfig(**kept), found["level"])
    assert [v["outcome"] for v in again] == [v["outcome"] for v in found["sweep"]]
    known = {(v["arm"], v["speedup"]): v for v in found["sweep"]}
    for tried in found["search"]["tried"]:
        if tried["seeds"] == found["config"]["seeds"]:
            assert tried["outcome"] == known[tried["arm"], tried["speedup"]]["outcome"]
    if name in SUBJECTS and name != "chemprop":
        plain = json.loads(json.dumps(subject(name).to_dict()))
        assert plain == found["subject"]
