"""Proofs of the faults of one training run; others: `fault_proofs_around`."""

import pytest
import torch
from loops import NAN, Bench, full_step, make_config, same_bits
from torch import nn

from fault_proofs_around import AROUND
from fault_proofs_numbers import NUMBERS, VERIFYING, each
from faulty import (
    Changed,
    Failing,
    FailingUpdate,
    Log,
    ReshapedUpdate,
    check_consistent,
    check_goes_on,
    check_plain_from_here,
    with_predictor,
    with_update,
)
from hybrid_predict import HybridEngine, Verdict
from hybrid_predict.errors import PredictorError
from hybrid_predict.forecast.predicted import PredictedSteps
from hybrid_predict.policy.limits import MOST_PAUSES
from interrupts import interrupt_lines


def predictor_raises(error):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(Failing(error=error))
        with Log() as log:
            while not bench.engine._state.plain:
                bench.step()
        assert len(log.lines) == 1
        check_plain_from_here(bench, f"the plug-in failed with {error.__name__}: no more")

    return prove


def update_raises(error, verifying):
    """In a verifying step before the update the batch is skipped; otherwise the update stands."""

    def prove(tmp_path, monkeypatch):
        after = 2 * VERIFYING if verifying else 2
        bench = with_update(FailingUpdate(error=error, after=after))
        with Log() as log:
            while not bench.engine._state.plain:
                kept = bench.kept()
                record = bench.step()
        assert len(log.lines) == 1
        assert (record.predicted > 0) is verifying
        assert same_bits(kept, bench.kept()) is verifying
        check_plain_from_here(bench, f"the plug-in failed with {error.__name__}: no more")

    return prove


def copy_does_not_fit(method):
    def prove(tmp_path, monkeypatch):
        bench = Bench(make_config())
        bench.train(VERIFYING)
        kept = bench.kept()

        def full(*_):
            # Half of the weights have moved when memory ends.
            for p in list(bench.model.parameters())[:2] if method == "take" else ():
                p.data.add_(1.0)
            raise torch.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(PredictedSteps, method, full)
            bench.engine.before_step()
        assert same_bits(kept, bench.kept())
        bench.engine.abandon()
        check_plain_from_here(bench, "OutOfMemoryError")

    return prove


def wrong_direction(change, words):
    def prove(tmp_path, monkeypatch):
        bench = with_update(ReshapedUpdate(change=change))
        kept = bench.kept()
        with pytest.raises(PredictorError, match=words):
            bench.step()
        assert same_bits(kept, bench.kept())
        bench.engine.detach()
        bench.step()
        assert not same_bits(kept, bench.kept())

    return prove


def poisoned_update(tmp_path, monkeypatch):
    update = ReshapedUpdate(change=lambda found: [d * NAN for d in found])
    traces = []
    for bench in (with_update(update), Bench(make_config(updates={}))):
        torch.manual_seed(5)
        bench.train(2 * VERIFYING)
        check_consistent(bench)
        traces.append(bench.trace())
    assert same_bits(*traces)


def broken_numbers(change):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(Changed(change=change, after=6), total_steps=160, warmup_steps=12)
        undone = 0
        while not bench.engine.done:
            kept, record = bench.kept(), bench.step()
            check_consistent(bench)
            if record.verdict is Verdict.UNDONE:
                undone += 1
                assert same_bits(kept, bench.kept())
        assert undone == MOST_PAUSES + 1 == bench.engine.ledger.undone_steps
        assert bench.engine.ledger.full_steps == 160 and bench.engine.ledger.predicted_steps == 0
        assert bench.reasons[-1].startswith("no more predicted steps")

    return prove


def untouched_row(tmp_path, monkeypatch):
    """A row of an embedding that no batch visits must not keep what no gradient can show."""

    def poison(direction):
        spoiled = direction.clone()
        if spoiled.shape == (11, 8):
            spoiled[10] = NAN
        return spoiled

    predictor = Changed(change=poison, after=3, gated=False)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine = HybridEngine(model, optimizer, make_config(predictors={"embedding": predictor}))
    for _ in range(10):
        full_step(engine, [optimizer], lambda: model(torch.arange(10)).square().mean())
    (event,) = engine.ledger.events
    assert event["reason"] == "predicted steps were undone: the forecast was not finite"
    assert all(torch.isfinite(p).all() for p in model.parameters())


def interrupted(tmp_path, monkeypatch):
    interrupt_lines("mlp", every=173)


def predictor_interrupts(tmp_path, monkeypatch):
    bench = with_predictor(Failing(error=KeyboardInterrupt, after=VERIFYING))
    bench.train(VERIFYING - 1)
    for _ in range(2):
        kept = bench.kept()
        with pytest.raises(KeyboardInterrupt):
            bench.step()
            bench.step()
        bench.engine.abandon()
        check_consistent(bench)
    assert not bench.engine._state.plain
    assert same_bits(kept, bench.kept())


def forward_raises(tmp_path, monkeypatch):
    bench, twin = Bench(make_config()), Bench(make_config())
    for one in (bench, twin):
        torch.manual_seed(5)
        one.train(VERIFYING)
    kept = bench.kept()
    bench.engine.before_step()
    assert not same_bits(kept, bench.kept())
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        bench.model(torch.zeros(2, 3))
    bench.engine.before_step()
    bench.engine.abandon()
    assert same_bits(kept, bench.kept())
    assert bench.reasons == ["a full step was left before its update"]
    # The next full step is the one that would have come.
    for one in (bench, twin):
        torch.manual_seed(6)
        one.train(3)
    assert same_bits(bench.kept(), twin.kept())
    check_goes_on(bench)


def clock_jumps(tmp_path, monkeypatch):
    traces, ticks = [], iter(range(10**6, 0, -7))
    for jumping in (False, True):
        if jumping:
            for name in ("hybrid_predict.engine.perf_counter", "time.time"):
                monkeypatch.setattr(name, lambda: float(next(ticks)))
        bench = Bench(make_config())
        bench.train(12)
        traces.append(bench.trace())
        check_goes_on(bench, 2)
    assert same_bits(*traces)


NO_MEMORY = torch.OutOfMemoryError

PREDICTORS = {
    "A predictor raises, or runs out of memory, in a forecast": each(
        predictor_raises(ZeroDivisionError), predictor_raises(NO_MEMORY)
    ),
    **{
        f"A corrected update raises, or runs out of memory, in `direction` in {at}": each(
            *(update_raises(e, "verifying" in at) for e in (ZeroDivisionError, NO_MEMORY))
        )
        for at in ("a full step", "a verifying step")
    },
    "Out of memory in the copy that makes predicted steps": each(
        copy_does_not_fit("__init__"), copy_does_not_fit("take")
    ),
    "Directions of a corrected update of a wrong shape, on a": each(
        wrong_direction(lambda found: [d.reshape(-1) for d in found], "shape"),
        wrong_direction(lambda found: [d.to("meta") for d in found], "type='cpu'"),
        wrong_direction(lambda found: found[1:], "direction"),
        wrong_direction(lambda found: None, "got .NoneType"),
        wrong_direction(lambda found: map(abs, found), "got .map"),
        wrong_direction(lambda found: found[0], "got .Tensor"),
        wrong_direction(lambda found: [3 for _ in found], "got .int"),
    ),
    "NaN in the directions of a corrected update": poisoned_update,
    "NaN in the directions of every forecast": broken_numbers(lambda d: d * NAN),
    "NaN in the forecast of a row that the batch does not visit": untouched_row,
}

PROCESS = {
    "Ctrl-C at any line of the plug-in": interrupted,
    "A predictor raises `KeyboardInterrupt`": predictor_interrupts,
    "The forward or backward pass raises at predicted weights": forward_raises,
    "Clocks that run backwards": clock_jumps,
}

PROOFS = {**NUMBERS, **PREDICTORS, **PROCESS, **AROUND}
"""What injects each fault and asserts, by the first words of its entry on the page.

Each takes pytest's ``tmp_path`` and ``monkeypatch``.
"""
