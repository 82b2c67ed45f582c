"""The audit's search against a sweep: the same runs, the same test, and what the tables say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import UNGATED

from benchmarks.search import table
from benchmarks.search.__main__ import compare, judged
from benchmarks.search.subjects import SUBJECTS, TaskSubject, configured, subject
from hybrid_predict.audit import AuditConfig, AuditOutcome
from hybrid_predict.audit.searching import WAYS

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / "search.json"
SPEEDUPS = (1.5, 3.0)


def rows(borders: dict[str, float]) -> list[dict[str, Any]]:
    """Runs of five seeds, as good as full up to an arm's border, above it as bad as short."""
    found = []
    for seed in range(5):
        found.append({"arm": "full", "seed": seed, "speedup": 1.5, "metric": 1.0, "full_steps": 90})
        for speedup in SPEEDUPS:
            for arm in ("short", *WAYS):
                good = speedup <= borders.get(arm, 0.0)
                value = (1.0 if good else 1.0 + speedup) + 0.001 * (seed % 3)
                found.append({"arm": arm, "seed": seed, "speedup": speedup, "metric": value,
                              "full_steps": 90 / speedup})  # fmt: skip
    return [{**row, "failure": None, "predicted_steps": 0} for row in found]


def test_the_largest_candidate_of_the_sweep_is_by_the_audits_own_test() -> None:
    config = AuditConfig(speedups=SPEEDUPS)
    sweep = judged(rows({"corrected": 3.0, "hybrid": 1.5}), config, 0.0125)
    assert [(v["arm"], v["speedup"], v["outcome"]) for v in sweep] == [
        ("corrected", 1.5, "verified"),
        ("corrected", 3.0, "verified"),
        ("hybrid", 1.5, "verified"),
        ("hybrid", 3.0, "no saving"),
    ]
    assert {v["contrast"]["n"] for v in sweep} == {5}
    found = {"sweep": sweep}
    assert (table.largest(found, "corrected"), table.largest(found, "hybrid")) == (3.0, 1.5)
    none = judged(rows({}), config, 0.0125)
    assert table.largest({"sweep": none}, "corrected") is None


@pytest.mark.filterwarnings("ignore:The number of training batches")
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
