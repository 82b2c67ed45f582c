"""A run that is saved at any full step and continued elsewhere is the same run, bit for bit."""

import io

import pytest
import torch
from torch import nn

from hybrid_predict import AlignmentHorizon, CheckpointError, FixedHorizon, HybridEngine, Phase
from hybrid_predict.verification import random_states, set_random_states
from loops import NAN, Bench, make_config, same_bits, spoil_with, weights

CYCLES = {"total_steps": 24, "cooldown_fraction": 0.1, "period": 3, "correct_steps": 2}

SCENARIOS = {
    "cycles": (CYCLES, ()),
    "cycles-lag": ({**CYCLES, "lag": 3}, ()),
    "rejections": ({"horizon": AlignmentHorizon(floors={}, rate=2.0)}, (5, 9)),
    "rejections-lag": ({"lag": 3, "horizon": "alignment"}, (5, 6, 12)),
    "hand-over": ({"patience": 2}, (7, 8)),
    "hand-over-lag": ({"patience": 2, "lag": 3}, (7, 8)),
    "shadow": ({"shadow": True, "horizon": FixedHorizon(updates=4.0)}, (9,)),
    "auto": ({"speedup": "auto"}, (9,)),
    "auto-lag": ({"speedup": "auto", "lag": 3}, (5, 9)),
    "history in bfloat16": ({"history_dtype": "bfloat16"}, (9,)),
    "sampled": ({"sample_every": 3, "policy": "implied", "long_horizon": 1.0}, ()),
}


def advance(bench, spoiled):
    return bench.step(spoil_with(factor=NAN) if bench.taken in spoiled else None)


def save(bench):
    buffer = io.BytesIO()
    state = {
        "model": bench.model.state_dict(),
        "optimizer": bench.optimizer.state_dict(),
        "engine": bench.engine.state_dict(),
        "random": random_states(),
        "taken": bench.taken,
    }
    torch.save(state, buffer)
    return buffer.getvalue()


def load(saved, config, model):
    state = torch.load(io.BytesIO(saved), weights_only=True)
    bench = Bench(config, model)
    bench.model.load_state_dict(state["model"])
    bench.optimizer.load_state_dict(state["optimizer"])
    bench.engine.load_state_dict(state["engine"])
    set_random_states(state["random"])
    bench.taken = state["taken"]
    return bench


def summary(record):
    """What a record says about training; the counted seconds are no part of it."""
    return (record.step, record.phase, record.ticks, record.read_step, record.verdict, record.loss)


@pytest.mark.parametrize("model", ["mlp", "partly-trained"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_run_resumes_bit_for_bit_from_every_step(scenario, model):
    changes, spoiled = SCENARIOS[scenario]
    config = make_config(**changes)
    bench = Bench(config, model)
    saves, records = [save(bench)], []
    while not bench.engine.done:
        records.append(advance(bench, spoiled))
        saves.append(save(bench))
    wanted = bench.trace()
    for k, saved in enumerate(saves):
        resumed, tail = load(saved, config, model), []
        while not resumed.engine.done:
            tail.append(advance(resumed, spoiled))
        assert [summary(r) for r in tail] == [summary(r) for r in records[k:]]
        assert same_bits(resumed.trace(), wanted), f"resumed after full step {k}"


@pytest.mark.parametrize(
    ("scenario", "phases"),
    [
        ("cycles", {Phase.WARMUP, Phase.PREDICT, Phase.CORRECT, Phase.COOLDOWN}),
        ("hand-over", {Phase.WARMUP, Phase.PREDICT, Phase.FULL}),
    ],
)
def test_resumed_runs_pass_every_phase(scenario, phases):
    changes, spoiled = SCENARIOS[scenario]
    bench, seen = Bench(make_config(**changes)), set()
    while not bench.engine.done:
        seen.add(advance(bench, spoiled).phase)
    assert seen == phases


def test_open_score_of_shadow_mode_is_saved():
    changes, _ = SCENARIOS["shadow"]
    bench = Bench(make_config(**changes))
    bench.train(5)
    assert bench.engine.state_dict()["scorer"]["left"] > 0


def test_score_left_open_by_shadow_mode_is_dropped_once_forecasts_are_applied():
    horizon = FixedHorizon(updates=4.0)
    shadow = Bench(make_config(shadow=True, horizon=horizon))
    shadow.train(4)
    active = load(save(shadow), make_config(horizon=horizon, period=3), "mlp")
    assert active.engine.state_dict()["scorer"]["left"] > 0
    records = active.train(9)
    assert any(record.horizon > 0 for record in records)
    applied = next(k for k, record in enumerate(records) if record.horizon > 0)
    assert all(record.residual is None for record in records[applied:])


def test_saved_state_does_not_follow_the_run():
    bench = Bench(make_config())
    bench.train(6)
    state = bench.engine.state_dict()
    average = state["forecaster"]["histories"][0]["average"][0].clone()
    bench.train(3)
    assert same_bits(state["forecaster"]["histories"][0]["average"][0], average)
    assert state["clock"]["full_steps"] == 6


@pytest.mark.parametrize("order", ["model-first", "engine-first"])
def test_first_forecast_after_resume_protects_batch_norm(order):
    config = make_config()
    bench = Bench(config, "conv")
    bench.train(6)
    saved = torch.load(io.BytesIO(save(bench)), weights_only=True)
    fresh = Bench(None if order == "model-first" else config, "conv")
    fresh.model.load_state_dict(saved["model"])
    fresh.optimizer.load_state_dict(saved["optimizer"])
    fresh.engine = fresh.engine or HybridEngine(fresh.model, fresh.optimizer, config)
    fresh.engine.load_state_dict(saved["engine"])
    record = fresh.step(spoil_with(factor=NAN))
    assert record.horizon > 0
    assert same_bits(dict(fresh.model.state_dict()), dict(saved["model"]))


def wider():
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Linear(20, 3))
    return HybridEngine(model, torch.optim.AdamW(model.parameters()), make_config())


FOREIGN = {
    "not-a-state": lambda state: {"weights": state},
    "version": lambda state: {**state, "version": 99},
    "names": lambda state: {**state, "names": [*state["names"], "decoder.weight"]},
    "model": lambda state: wider().state_dict(),
    "predictors": lambda state: Bench(make_config(predictors={})).engine.state_dict(),
}


def test_state_with_a_missing_entry_is_refused():
    whole = Bench(make_config()).engine.state_dict()
    for entry in whole:
        state = {name: value for name, value in whole.items() if name != entry}
        with pytest.raises(CheckpointError, match="state: expected"):
            Bench(make_config()).engine.load_state_dict(state)


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_state_is_refused_and_changes_nothing(kind):
    bench = Bench(make_config())
    bench.train(6)
    before, base = bench.engine.state_dict(), weights(bench.model)
    with pytest.raises(CheckpointError, match="state: "):
        bench.engine.load_state_dict(FOREIGN[kind](before))
    assert same_bits(bench.engine.state_dict(), before)
    assert same_bits(weights(bench.model), base)


def test_longer_run_continues_a_shorter_one_and_says_so():
    bench = Bench(make_config(total_steps=20))
    bench.finish()
    longer = load(save(bench), make_config(total_steps=40), "mlp")
    assert not longer.engine.done
    longer.finish()
    assert longer.engine.ledger.equivalent_steps == 40
    reasons = [event["reason"] for event in longer.engine.ledger.events]
    assert "the run's length changed from 20 to 40 equivalent steps" in reasons


def test_resumed_run_adopts_the_lag_of_the_saved_one():
    bench = Bench(make_config(lag=3))
    bench.train(8)
    saved = save(bench)
    bench.finish()
    resumed = load(saved, make_config(lag=0), "mlp")
    resumed.finish()
    assert resumed.engine.config.lag == 3
    assert same_bits(resumed.trace(), bench.trace())


@pytest.mark.parametrize("lag", [0, 3])
def test_what_is_saved_after_leaving_a_run_is_what_would_have_been_before(lag):
    bench = Bench(make_config(lag=lag))
    bench.train(12)
    before = bench.engine.state_dict()
    bench.engine.detach()
    assert same_bits(bench.engine.state_dict(), before)


def test_a_full_step_left_before_its_update_leaves_no_trace_in_buffers():
    bench = Bench(make_config(), "conv")
    bench.train(8)
    before = bench.trace()["model"]
    bench.engine.before_step()
    assert bench.engine.mapper.displaced
    bench.loss().backward()
    bench.engine.abandon()
    assert same_bits(bench.trace()["model"], before)
