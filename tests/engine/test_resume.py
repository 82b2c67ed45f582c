"""A run that is saved at any full step and continued elsewhere is the same run, bit for bit."""

import pytest
import torch
from loops import NAN, Bench, hurry, load, make_config, same_bits, save, spoil_with

from hybrid_predict import SpectralUpdate
from hybrid_predict.ledger import Phase

SHORT = {"total_steps": 24}
SCENARIOS = {
    "pattern": (SHORT, ()),
    "undone": ({"total_steps": 40}, (6, 26)),
    "spread": ({**SHORT, "speedup": 1.4, "updates": {}}, ()),
    "shadow": ({**SHORT, "shadow": True}, (9,)),
    "corrected only": ({**SHORT, "speedup": 1}, (9,)),
    "no root": ({**SHORT, "updates": {"hidden": SpectralUpdate(share=0.5, longest=0)}}, (9,)),
    "history in bfloat16": ({**SHORT, "history_dtype": "bfloat16"}, (9,)),
}


def advance(bench, spoiled):
    return bench.step(spoil_with(factor=NAN) if bench.taken in spoiled else None)


def summary(record):
    """What a record says about training."""
    return record.step, record.phase, record.ticks, record.predicted, record.verdict, record.loss


@pytest.mark.parametrize(
    ("scenario", "model", "optimizer"),
    [
        *((name, "mlp", "adamw-fused") for name in list(SCENARIOS)[2:]),
        ("undone", "conv", "sgd"),
        ("pattern", "partly-trained", "rmsprop"),
    ],
)
def test_a_run_resumes_bit_for_bit_from_every_step(scenario, model, optimizer):
    changes, spoiled = SCENARIOS[scenario]
    config = make_config(**changes)
    bench = Bench(config, model, optimizer)
    saves, records = [save(bench)], []
    while not bench.engine.done:
        records.append(advance(bench, spoiled))
        saves.append(save(bench))
    wanted = bench.trace()
    if scenario == "undone":
        assert bench.engine.ledger.undone_steps == 2
    if scenario == "pattern":
        assert {record.phase for record in records} == set(Phase) - {Phase.PLAIN}
    for k in range(0, len(saves), 4):
        resumed, tail = load(saves[k], config, model, optimizer), []
        while not resumed.engine.done:
            tail.append(advance(resumed, spoiled))
        assert list(map(repr, map(summary, tail))) == list(map(repr, map(summary, records[k:])))
        assert same_bits(resumed.trace(), wanted), f"resumed after full step {k}"


def test_a_run_that_decides_its_own_pace_resumes_bit_for_bit():
    config = make_config(total_steps=200, speedup="auto", warmup_steps=60, cooldown_steps=5)
    bench = Bench(config)
    bench.optimizer.param_groups[0]["lr"] = 1e-6
    saves, records, states = [], [], []

    def step(bench, number):
        if number == 120:
            bench.optimizer.param_groups[0]["lr"] = 1e-3
        first = 0.85 + 0.05 * min(1.0, number / 30)  # as a schedule of momentum changes it
        bench.optimizer.param_groups[0]["betas"] = first, 0.999
        if number in (60, 82):  # the measured persistence of so few weights may be chance
            hurry(bench.engine)
        return advance(bench, (84,))

    while not bench.engine.done:
        saves.append(save(bench))
        states.append(bench.engine.state_dict())
        records.append(step(bench, len(records)))
    wanted, ledger = bench.trace(), bench.engine.ledger
    assert {record.phase for record in records} == set(Phase) - {Phase.PLAIN}
    assert ledger.predicted_steps > 20 and ledger.undone_steps == records[84].predicted > 0
    policies = [state["policy"]["forecasts"] for state in states]
    assert any(known["end"] for policy in policies for *_, known in policy["confidences"])
    assert any(policy["credit"] % 1 for policy in policies)
    first = next(k for k, record in enumerate(records) if record.predicted)
    for k in {45, first + 1, 84, 121}:
        resumed, tail = load(saves[k], config), []
        for part in ("tensors", "policy"):
            assert same_bits(resumed.engine.state_dict()[part], states[k][part])
        while not resumed.engine.done:
            tail.append(step(resumed, k + len(tail)))
        assert list(map(repr, map(summary, tail))) == list(map(repr, map(summary, records[k:])))
        assert same_bits(resumed.trace(), wanted), f"resumed after full step {k}"


CHANGED = {
    "another update": {"updates": {"hidden": SpectralUpdate(decay=0.5)}},
    "fewer predicted kinds": {"predictors": {"head": "momentum"}},
    "another predictor": {"predictors": {"hidden": "momentum"}},
    "no predicted steps": {"speedup": 1},
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_does_not_fit_other_settings_is_dropped_and_logged(change, caplog):
    bench = Bench(make_config())
    bench.train(8)
    other = load(save(bench), make_config(**CHANGED[change]))
    again = load(save(other), make_config())
    assert again.engine.ledger.steps == bench.engine.ledger.steps
    assert "what was saved of hidden does not fit this run and was dropped" in caplog.text
    assert other.engine.ledger.steps == bench.engine.ledger.steps
    other.finish()
    assert other.engine.ledger.steps == 30
    assert all(torch.isfinite(p).all() for p in other.model.parameters())


@pytest.mark.parametrize(
    ("steps", "reason"), [(3, "starts before the saved state"), (25, "went on without the plug-in")]
)
def test_somebody_else_s_count_wins_and_is_logged(steps, reason, caplog):
    bench = Bench(make_config(total_steps=60))
    bench.train(8)
    fresh = Bench(make_config(total_steps=60))
    fresh.engine.load_state_dict(bench.engine.state_dict(), steps=steps)
    assert fresh.engine.ledger.steps == steps
    assert reason in caplog.text
    records = fresh.finish()
    assert sum(r.ticks for r in records) == 60 - steps
    ledger = fresh.engine.ledger
    assert ledger.steps == 60 == ledger.full_steps + ledger.predicted_steps
