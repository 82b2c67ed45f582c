"""The search for the largest speedup: what it trains, shares, keeps and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from audit_task import STEPS, Task, config

from hybrid_predict import ConfigError
from hybrid_predict.audit import AuditOutcome, audit, plan_search, search
from hybrid_predict.audit.searching import Tried, _Searching, paste
from hybrid_predict.audit.verdict import AuditVerdict, Bounds
from hybrid_predict.runs.runtime import Observer

SPEEDUPS = (1.5, 2.0, 3.0)


def judged(monkeypatch: pytest.MonkeyPatch, border: dict[str, float]) -> list[tuple[str, float]]:
    """Let candidates up to a speedup pass, and tell which were tested."""
    tested: list[tuple[str, float]] = []
    real = _Searching._test

    def test(self: Any, arm: str, speedup: float) -> Tried:
        real(self, arm, speedup)
        tested.append((arm, speedup))
        passed = speedup <= border[arm]
        outcome = AuditOutcome.VERIFIED if passed else AuditOutcome.NO_SAVING
        return Tried(arm, speedup, AuditVerdict(outcome, "", "", 2, 1 - 1 / speedup))

    monkeypatch.setattr(_Searching, "_test", test)
    return tested


@pytest.mark.parametrize(
    ("corrected", "hybrid", "line"),
    [
        (3.0, 1.5, f"Trainer(max_steps={STEPS // 3}, callbacks=[HybridPredict(speedup=1, "),
        (1.5, 2.0, f"Trainer(max_steps={STEPS}, callbacks=[HybridPredict(speedup=2, "),
        (0.0, 0.0, f"Trainer(max_steps={STEPS})  # no saving at equal quality was shown"),
    ],
)
def test_each_arm_is_bisected_and_the_largest_saving_wins(
    corrected: float, hybrid: float, line: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders = {"corrected": corrected, "hybrid": hybrid}
    tested, task = judged(monkeypatch, borders), Task()
    found = search(task, config(speedups=SPEEDUPS), tmp_path)
    assert found.line.startswith(line) and not found.partial
    assert found.best == {arm: border or None for arm, border in borders.items()}
    for arm, border in borders.items():
        assert tested.index((arm, 2.0)) == min(k for k, t in enumerate(tested) if t[0] == arm)
        assert (arm, 3.0 if border >= 2 else 1.5) in tested
    assert task.calls.count(("full", 0)) == task.calls.count(("full", 1)) == 1


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Any) -> None:
    class Stops(Observer):
        def run_finished(self, run: Any) -> None:
            raise KeyboardInterrupt

    first, chosen = Task(), config(speedups=(1.5, 3.0))
    stopped = search(first, chosen, tmp_path, observer=Stops())
    assert stopped.partial and stopped.results["tried"] == []
    assert first.calls == [("full", 0)]
    second = Task()
    whole = search(second, chosen, tmp_path)
    assert not whole.partial and ("full", 0) not in second.calls
    again = Task()
    repeated = search(again, chosen, tmp_path)
    assert again.calls == []
    assert repeated.results == whole.results
    saved = json.loads((tmp_path / "search.json").read_text())
    assert saved["line"] == whole.line and saved["level"] == pytest.approx(0.05 / 4)
    assert {t["arm"] for t in saved["tried"]} == {"corrected", "hybrid"}


def test_every_speedup_has_the_folder_of_an_audit(tmp_path: Any) -> None:
    search(Task(), config(speedups=(1.5,)), tmp_path)
    task = Task()
    audit(task, config(speedups=(1.5,)), tmp_path / "speedup-1.5")
    assert task.calls == []


def verdict(outcome: AuditOutcome, saving: float, worth: float) -> AuditVerdict:
    limits = Bounds(worth, 0.0, worth, worth, 5)
    return AuditVerdict(outcome, "", "", 5, saving, worth=limits)


def test_plain_training_that_can_simply_be_shortened_is_told() -> None:
    tried = [
        Tried("hybrid", 2.0, verdict(AuditOutcome.NO_SAVING, 0.5, -0.1)),
        Tried("hybrid", 1.5, verdict(AuditOutcome.VERIFIED, 0.3, 0.1)),
    ]
    line = paste(config(speedups=SPEEDUPS), tried, {"max_epochs": 31})
    assert line == "Trainer(max_epochs=16)  # plain training, with a schedule as short as the run"


def test_a_plan_tells_the_most_that_a_search_trains() -> None:
    task = Task()
    plan = plan_search(task, config(speedups=SPEEDUPS))
    assert (plan.runs, plan.tests) == (2 * (1 + 2 * 4), 4)
    assert len(task.calls) == 1
    assert "At most 18 runs for 4 tests" in str(plan)


@pytest.mark.parametrize("speedups", [(), (2.0, 1.5), (1.0, 2.0), (1.5, 1.5), 2.0, ("2",)])
def test_speedups_that_are_no_ladder_are_refused(speedups: Any) -> None:
    with pytest.raises(ConfigError, match="speedups"):
        config(speedups=speedups)
