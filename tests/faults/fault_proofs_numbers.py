"""Proofs of the faults of numbers in a verifying step."""

from functools import partial

import torch
from loops import NAN, SPOILERS, Bench, make_config, same_bits, spoil_with
from torch import nn

from faulty import (
    Changed,
    Log,
    check_consistent,
    check_goes_on,
    check_plain_from_here,
    with_predictor,
)
from hybrid_predict import HybridEngine, MomentumPredictor, Verdict
from hybrid_predict.policy.limits import PAUSE

VERIFYING = 5
"""Full steps before one that predicted steps come right before."""

LONG = {"total_steps": 400, "warmup_steps": 12}
AWAY = spoil_with(factor=10.0)


def burst(model, loss):
    """Multiplies one gradient by a million."""
    parameter = next(model.parameters())
    handle = parameter.register_hook(lambda g: (handle.remove(), g * 1e6)[1])
    return loss


def check_undone(bench, act):
    """A verifying step that leaves no trace, the pause after it, and the rest of the run."""
    kept = bench.kept()
    record = act()
    assert (record.predicted > 0, record.verdict) == (True, Verdict.UNDONE)
    assert record.ticks == 1
    assert same_bits(kept, bench.kept())
    assert bench.reasons[-1].startswith("predicted steps were undone: ")
    check_goes_on(bench)
    assert {r.predicted for r in bench.train(8)} == {0}


def each(*proofs):
    """One proof after the other."""

    def prove(tmp_path, monkeypatch):
        for proof in proofs:
            proof(tmp_path, monkeypatch)

    return prove


def undone(spoil, before=VERIFYING, **changes):
    def prove(tmp_path, monkeypatch):
        bench = Bench(make_config(**changes))
        bench.train(before)
        check_undone(bench, partial(bench.step, spoil))

    return prove


def paused(spoil, words, before=VERIFYING, **changes):
    """Nothing is undone, as the update has happened, but predicted steps pause."""

    def prove(tmp_path, monkeypatch):
        bench = Bench(make_config(total_steps=120, **changes))
        bench.train(before)
        record = bench.step(spoil)
        assert (record.verdict, record.ticks) == (Verdict.STANDS, 2)
        assert bench.reasons == [f"predicted steps pause: the loss of a verifying step {words}"]
        assert {r.predicted for r in bench.train(PAUSE)} == {0}
        assert any(r.predicted for r in bench.train(2))
        check_goes_on(bench)

    return prove


def spoiled_full_step(tmp_path, monkeypatch):
    traces = []
    for config in (None, make_config(updates={})):
        bench = Bench(config)
        bench.train(1)
        bench.step(SPOILERS["nan-loss"])
        traces.append(bench.trace())
    assert same_bits(*traces)


def spoiled_full_step_and_back(tmp_path, monkeypatch):
    bench = Bench(make_config(**LONG))
    bench.train(4)
    model, optimizer = bench.kept()
    bench.step(SPOILERS["nan-loss"])
    assert not all(torch.isfinite(p).all() for p in bench.model.parameters())
    bench.model.load_state_dict(model)
    bench.optimizer.load_state_dict(optimizer)
    check_goes_on(bench, 20)
    assert bench.engine.ledger.predicted_steps > 3 and not bench.reasons


def too_far(tmp_path, monkeypatch):
    for coefficient in (-30.0, 30.0):
        torch.manual_seed(0)
        bench = with_predictor(MomentumPredictor(coefficient=coefficient), **LONG)
        bench.model[2].p = 0.0
        x = torch.randn(32, 6)
        bench.loss = lambda: (bench.model(x) - x[:, :3].sin()).square().mean()  # noqa: B023
        with Log() as log:
            while not bench.engine._state.plain and not bench.engine.done:
                bench.step()
                check_consistent(bench)
        assert bench.engine._state.plain
        assert bench.engine.ledger.full_steps < 150
        assert "stands above that of the warm-up" in log.lines[-1]


def stands_above(tmp_path, monkeypatch):
    bench = Bench(make_config(**LONG))
    bench.train(14)
    while not bench.engine._state.plain:
        bench.step(lambda model, loss: loss + 0.4)
    assert 14 + 32 < bench.engine.ledger.full_steps < 14 + 64
    check_plain_from_here(bench, "stands above that of the warm-up")


def other_optimizer(tmp_path, monkeypatch):
    """A forecast of one optimizer's parameters must not spoil those of another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3))
    hidden = [model[2].weight]
    optimizers = [
        torch.optim.AdamW(hidden, lr=0.01),
        torch.optim.AdamW([p for p in model.parameters() if p is not hidden[0]], lr=0.01),
    ]
    predictor = Changed(change=lambda d: d * NAN, after=4, gated=False)
    config = make_config(predictors={"hidden": predictor})
    engine = HybridEngine(model, optimizers, config)
    for k in range(12):
        kept = [p.detach().clone() for p in model.parameters()]
        engine.before_step()
        loss = model(torch.randn(8, 6)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        record = engine.after_step(loss)
        assert (record.verdict is Verdict.UNDONE) is same_bits(kept, list(model.parameters()))
        assert all(torch.isfinite(p).all() for p in model.parameters()), k
    assert engine.ledger.undone_steps == 1


NUMBERS = {
    "NaN or Inf in the gradients of a verifying step": each(
        *(undone(SPOILERS[name]) for name in ("nan-loss", "one-gradient"))
    ),
    "A gradient a million times its length in a verifying step": undone(burst, before=13, **LONG),
    "The same, if the loss is known only after the update": each(
        paused(SPOILERS["inf-loss-only"], "was not finite"),
        paused(AWAY, "stood far above its mean", before=13, warmup_steps=12),
    ),
    "Any of these in another full step": spoiled_full_step,
    "NaN gradients in another full step, after which the loop": spoiled_full_step_and_back,
    "Forecasts 30 times too long, with the right or the wrong": too_far,
    "The mean loss stands above that of the warm-up for 32 full": stands_above,
    "NaN in the forecast of one of several optimizers": other_optimizer,
}
