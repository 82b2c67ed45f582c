"""Runs that keep one advance, and rules that are learned from what they show."""

import random
from dataclasses import replace

from benchmarks.rates import signals, study
from benchmarks.rates.learned import climbed, formula, held_out
from benchmarks.rates.signals import ADVANCES, Kept, key_of, measure
from benchmarks.tasks import TASKS
from hybrid_predict.rules.pace import Lagged, Pace


def row(advance=0.0, persistence=0.0, **others):
    values = {"advance": advance, "persistence": persistence, "error": 0.0, "skill": 0.5}
    return {**values, "fitted": 1.0, "worth": 1.0, **others}


def made(best, persistence):
    """Runs at every advance, of which ``best`` gains most; beyond it nothing persists."""
    return {
        advance: (
            row(advance, persistence if advance < best else -persistence),
            2.0 - abs(ADVANCES.index(advance) - ADVANCES.index(best)) / 4,
        )
        for advance in ADVANCES
    }


def test_an_advance_is_kept_from_the_first_window_on():
    kept, lagged = Kept(2.0), Lagged(late=3.0, early=1.0, forecast=4.0, drift=1.0, chance=0.01)
    pace = kept.follow(Pace(), Lagged(), planned=False)
    assert pace.advance == 0.0
    pace = kept.follow(pace, lagged, planned=False)
    assert (pace.advance, pace.windows) == (2.0, 1)
    assert kept.signals == {"persistence": 1.0, "error": 0.05, "worth": 1.0}


def test_a_run_with_a_kept_advance_shows_its_signals(monkeypatch):
    monkeypatch.setitem(study.TASKS, "mlp", replace(TASKS["mlp"], steps=60))
    key = ("mlp", 0.1, 0, 2.0, "rates")
    found = measure(key)
    assert key_of(found) == key
    assert found["full_steps"] + found["predicted_steps"] == 60
    assert found["predicted_steps"] > 0
    assert set(found) >= {"persistence", "error", "worth", "skill", "fitted", "loss"}
    places = len(study.SHARES) * 7 + len(study.STEADY_SHARES) * len(study.STEADY_TASKS)
    assert len(set(signals.keys(2))) == 2 * places * len(ADVANCES)


def test_a_climb_stops_where_the_decision_says_so():
    runs = made(2.0, 0.1)
    assert climbed(runs, formula) == 2.0
    assert climbed(runs, lambda row: False) == runs[0.0][1]
    assert climbed(runs, lambda row: True) == runs[ADVANCES[-1]][1]
    runs[1.0] = row(1.0, 0.1, worth=0.05), 1.75
    assert climbed(runs, formula) == 1.75


def test_a_rule_is_learned_on_other_tasks_from_the_signal_that_tells():
    random.seed(0)
    known = {
        (f"task {k}", 0.1, "rates"): made(random.choice(ADVANCES[1:-1]), random.uniform(0.1, 0.3))
        for k in range(6)
    }
    assert set(held_out(known, ["persistence"]).values()) == {2.0}
    assert min(held_out(known, ["skill"]).values()) < 2.0
