"""Forecasts stop by themselves where they do not pay; the rest of the run is plain training."""

import logging

import pytest

from hybrid_predict import FixedHorizon, Phase, Verdict
from loops import NAN, Bench, make_config, same_bits, spoil_with

SPOIL = spoil_with(factor=NAN)


def until_handover(config, limit=40):
    bench = Bench(config)
    for _ in range(limit):
        if bench.engine.clock.handed_over:
            return bench
        spoil = SPOIL if bench.engine.clock.phase is Phase.PREDICT else None
        bench.step(spoil)
    raise AssertionError("the engine never handed over")


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("patience", [1, 4])
def test_rejections_in_a_row_hand_over_for_good(patience, lag):
    bench = until_handover(make_config(patience=patience, lag=lag))
    ledger = bench.engine.ledger
    assert ledger.rejected == ledger.forecasts == patience + lag
    records = bench.finish()
    assert {record.phase for record in records} == {Phase.FULL}
    assert {record.ticks for record in records} == {1}
    assert ledger.forecasts == patience + lag


def test_accepted_forecast_starts_the_count_of_rejections_anew():
    bench = Bench(make_config(patience=2))
    bench.train(3)
    for spoil in (SPOIL, None, SPOIL, None):
        bench.step(spoil)
    assert not bench.engine.clock.handed_over


@pytest.mark.parametrize("lag", [0, 3])
def test_after_the_hand_over_every_bit_is_the_plain_loop_s(lag):
    # The first half's end is the second half's start, once with and once without an engine.
    traces = []
    for plain in (True, False):
        bench = until_handover(make_config(patience=2, lag=lag))
        if plain:
            bench.engine.detach()
            bench.engine = None
        bench.train(8)
        traces.append(bench.trace())
    assert same_bits(*traces)


def test_nothing_is_compressed_when_every_forecast_is_rejected_at_once():
    bench = until_handover(make_config(patience=3, lag=0))
    bench.finish()
    ledger = bench.engine.ledger
    assert ledger.full_steps == ledger.equivalent_steps == 30
    assert ledger.saved_steps_fraction == 0


def test_horizon_of_zero_everywhere_hands_over_without_moving_a_weight():
    traces = []
    for config in (None, make_config(horizon=FixedHorizon(updates=0.0), patience=5)):
        bench = Bench(config)
        bench.train(20)
        traces.append(bench.trace())
    assert same_bits(*traces)
    assert bench.engine.clock.handed_over
    assert bench.engine.ledger.rejected == 5


def test_hand_over_is_logged_and_recorded_with_its_reason(caplog):
    with caplog.at_level(logging.WARNING, logger="hybrid_predict"):
        bench = until_handover(make_config(patience=2))
    assert "plain training, uncompressed" in caplog.text
    last = bench.engine.ledger.events[-1]
    assert last["reason"] == "handed over to plain training: 2 forecasts in a row were rejected"
    assert last["step"] == bench.engine.clock.full_steps


def test_step_left_open_before_a_hand_over_stays_at_base_weights():
    bench = until_handover(make_config(patience=1))
    before = bench.trace()["model"]
    bench.engine.before_step()
    assert same_bits(bench.trace()["model"], before)


def test_hand_over_outlives_a_resume():
    config = make_config(patience=1)
    bench = until_handover(config)
    fresh = Bench(config)
    fresh.engine.load_state_dict(bench.engine.state_dict())
    assert fresh.step().phase is Phase.FULL


def test_rejections_are_verdicts_on_the_steps_that_were_spoiled():
    bench = Bench(make_config(lag=3))
    records = [bench.step(SPOIL if k in (6, 9) else None) for k in range(15)]
    rejected = [r.read_step for r in records if r.verdict is Verdict.REJECTED]
    assert rejected == [7, 10]
    assert [r.step - r.read_step for r in records if r.read_step] == [3] * 12
