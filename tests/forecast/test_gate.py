"""Predicted steps are made with skill only, kind by kind; what is not made is still scored."""

from loops import Bench, make_config

from benchmarks.placebos import NegatedForecast
from hybrid_predict.ledger import Phase


def gated(**changes):
    return make_config(**{"total_steps": 200, "speedup": 1.5, **changes})


def test_the_warm_up_lasts_until_skill_is_known():
    assert Bench(make_config()).engine.schedule.warmup == 2
    bench = Bench(gated(predictors={"hidden": "momentum"}))
    records = bench.train(45)
    known = [r.step for r in records if r.skill is not None]
    assert known[0] == 40  # two windows: the first opens after half its length
    assert all(r.phase is Phase.WARMUP and not r.predicted for r in records[:40])
    assert all(r.phase is not Phase.WARMUP for r in records[40:])


def test_without_skill_full_steps_are_taken_and_the_run_stays_as_long():
    bench = Bench(gated(predictors={"hidden": NegatedForecast()}, total_steps=100))
    records = bench.finish()
    ledger = bench.engine.ledger
    assert (ledger.full_steps, ledger.steps, ledger.predicted_steps) == (100, 100, 0)
    assert ledger.skill < 0
    assert ledger.skills["hidden"]["windows"] == 5  # scored to the end
    event = ledger.events[-1]
    assert "not shown enough skill" in event["reason"]
    assert event["count"] > 10
    assert all(r.ticks == 1 for r in records)
