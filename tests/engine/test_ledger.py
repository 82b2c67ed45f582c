"""The ledger adds up and survives being written down."""

import json
from dataclasses import replace

import pytest
from loops import Bench, make_config

from hybrid_predict import SavingsLedger

BY_HAND = SavingsLedger(
    full_steps=60,
    steps=90,
    corrected_steps=57,
    predicted_steps=30,
    undone_steps=2,
    skill=-0.25,
    full_seconds=30.0,
    correct_seconds=2.0,
    predict_seconds=1.0,
    flops_per_step=1000,
    flops_per_correction=20,
    events=[{"step": 7, "reason": "because", "count": 1}],
)

DERIVED = {
    "saved_steps_fraction": 1 / 3,
    "overhead_fraction": 0.1,
    "estimated_seconds_saved": 30 * 0.5 - 3.0,
}


def test_derived_figures_are_those_computed_by_hand():
    assert {name: getattr(BY_HAND, name) for name in DERIVED} == pytest.approx(DERIVED)
    assert {name: BY_HAND.summary()[name] for name in DERIVED} == pytest.approx(DERIVED)


def test_an_empty_ledger_has_saved_nothing():
    derived = {name: getattr(SavingsLedger(), name) for name in DERIVED}
    assert set(derived.values()) == {0.0}


def test_a_summary_as_json_loses_nothing():
    bench = Bench(make_config())
    bench.finish()
    for ledger in (SavingsLedger(), BY_HAND, bench.engine.ledger):
        assert SavingsLedger.from_dict(json.loads(json.dumps(ledger.summary()))) == ledger


def test_predicted_steps_do_not_save_what_the_first_full_step_compiles():
    ledger = replace(BY_HAND, startup_seconds=18.4)
    assert ledger.plain_seconds == pytest.approx(30.0 + 30 * (30.0 - 18.4) / 59)
    bench = Bench(make_config(total_steps=20))
    bench.train(1)
    known = bench.engine.ledger.startup_seconds
    assert known > 0
    bench.finish()
    assert bench.engine.ledger.startup_seconds == known < bench.engine.ledger.full_seconds


@pytest.mark.parametrize(
    ("overhead", "first"),
    [
        (2.0, "60 full + 30 predicted"),
        (20.0, "took longer, 51 s on the host, 45 s plain by estimate; 60 full"),
    ],
)
def test_the_line_begins_with_seconds_where_they_are_lost(overhead, first):
    assert str(replace(BY_HAND, correct_seconds=overhead)).startswith(first)


def test_event_is_new_once_per_reason():
    ledger = SavingsLedger()
    assert [ledger.record(k, reason) for k, reason in enumerate("aba")] == [True, True, False]
    assert [(event["step"], event["count"]) for event in ledger.events] == [(0, 2), (1, 1)]
