"""The rows of the table of faults about one training run; others are in `fault_proofs_around`."""

import pytest
import torch

from fault_proofs_around import AROUND
from fault_table import Fault
from faulty import (
    Failing,
    FailingUpdate,
    Log,
    Reshaped,
    WrongWay,
    check_consistent,
    check_goes_on,
    check_plain_from_here,
    directions,
    interrupt_lines,
    state,
    with_predictor,
)
from hybrid_predict import (
    FixedHorizon,
    MomentumPredictor,
    PredictorError,
    Verdict,
    WeightDelta,
)
from loops import NAN, SPOILERS, Bench, make_config, same_bits, spoil_with

LONG = {"total_steps": 400, "warmup_fraction": 0.05}


def undone(spoil, before=5, **changes):
    """A step at a forecast point that leaves no trace, with the rest of the run after it."""
    bench = Bench(make_config(**changes))
    bench.train(before)
    kept = state(bench)
    record = bench.step(spoil)
    assert record.horizon > 0 and record.verdict is Verdict.REJECTED
    assert same_bits(kept, state(bench))
    check_goes_on(bench)
    return bench


def spoiled_at_a_forecast(spoiler):
    return lambda tmp_path, monkeypatch: undone(SPOILERS[spoiler])


def spoiled_at_base(tmp_path, monkeypatch):
    for spoil in SPOILERS.values():
        traces = []
        for config in (None, make_config()):
            bench = Bench(config)
            bench.train(1)
            bench.step(spoil)
            traces.append(bench.trace())
        assert same_bits(*traces)


def spike(tmp_path, monkeypatch):
    with Log() as log:
        bench = undone(spoil_with(factor=10.0), before=45, **LONG)
    assert any("far above its running mean" in line for line in log.lines)
    reasons = [event["reason"] for event in bench.engine.ledger.events]
    assert any("put back to its base weights" in reason for reason in reasons)
    assert {r.horizon for r in bench.train(8)} == {0.0}
    assert any(r.horizon > 0 for r in bench.train(16))


def gradient_burst(tmp_path, monkeypatch):
    def burst(model, loss):
        parameter = next(model.parameters())
        handle = parameter.register_hook(lambda g: (handle.remove(), g * 1e6)[1])
        return loss

    undone(burst, before=45, **LONG)


def uphill(tmp_path, monkeypatch):
    with Log() as log:
        bench = with_predictor(WrongWay(), **LONG, horizon=FixedHorizon(updates=9.0))
        while not bench.engine.clock.handed_over and not bench.engine.done:
            bench.step()
            check_consistent(bench)
    assert bench.engine.clock.handed_over
    assert bench.engine.clock.full_steps < 300
    assert len(log.lines) >= 2
    check_plain_from_here(bench, "")


def nowhere(tmp_path, monkeypatch):
    bench = with_predictor(Reshaped(change=directions(torch.zeros_like)), **LONG)
    while not bench.engine.clock.handed_over:
        bench.step()
    assert any("no share" in e["reason"] for e in bench.engine.ledger.events)
    check_plain_from_here(bench, "paused 3 times")


def predictor_raises(where, error):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(Failing(where=where, error=error))
        with Log() as log:
            while not bench.engine.clock.handed_over:
                bench.step()
        assert len(log.lines) == 1
        check_plain_from_here(bench, f"forecasting failed with {error.__name__}: no more")

    return prove


def plain_after(steps):
    bench = Bench(None)
    bench.train(steps)
    return bench


def update_cannot_be_shown(error, after):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(FailingUpdate(error=error, after=after))
        while not bench.engine.clock.handed_over:
            kept = state(bench)
            bench.step()
        if after < 3:
            kept = state(plain_after(bench.taken))
        assert same_bits(kept, state(bench))
        check_plain_from_here(bench, f"forecasting failed with {error.__name__}: no more")

    return prove


def copy_does_not_fit(tmp_path, monkeypatch):
    bench = Bench(make_config())
    bench.train(5)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench.engine.optimizer, "snapshot", full)
    kept = state(bench)
    bench.step()
    assert same_bits(kept, state(bench))
    check_plain_from_here(bench, "OutOfMemoryError")


def optimizer_raises(tmp_path, monkeypatch):
    bench = Bench(make_config())
    bench.train(5)
    kept = state(bench)
    own = bench.optimizer.param_groups[0].pop("weight_decay")
    with pytest.raises(KeyError):
        bench.step()
    bench.engine.abandon()
    bench.optimizer.param_groups[0]["weight_decay"] = own
    assert same_bits(kept, state(bench))
    bench.optimizer.zero_grad()
    check_goes_on(bench)


def rule_raises(tmp_path, monkeypatch):
    class Rule(FixedHorizon):
        def update(self, own, alignments, kinds):
            raise LookupError("no such horizon")

    bench = Bench(make_config(horizon=Rule(updates=2.0), lag=2))
    while not bench.engine.clock.handed_over:
        bench.step()
    check_plain_from_here(bench, "LookupError")


def wrong_form(change, words):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(Reshaped(change=change))
        with pytest.raises(PredictorError, match=words):
            bench.step()
        assert bench.engine.clock.full_steps == 0
        bench.engine.detach()
        bench.step()
        assert all(torch.isfinite(p).all() for p in bench.model.parameters())

    return prove


def broken_numbers(change, horizon):
    def prove(tmp_path, monkeypatch):
        bench = with_predictor(Reshaped(change=change, after=6), patience=3)
        rejected = []
        while not bench.engine.clock.handed_over:
            kept, record = state(bench), bench.step()
            check_consistent(bench)
            if record.verdict is Verdict.REJECTED:
                rejected.append(record.horizon)
                # Refused before it moved a weight, the step is an ordinary one at base weights.
                assert same_bits(kept, state(bench)) is (horizon > 0)
        assert rejected == [horizon] * 3
        reasons = [event["reason"] for event in bench.engine.ledger.events]
        assert reasons[0].startswith("forecast rejected: ")
        check_plain_from_here(bench, "3 forecasts in a row were rejected")

    return prove


def untouched_row(tmp_path, monkeypatch):
    """A row of an embedding that no batch visits must not keep what no loss could have shown."""

    def poison(direction):
        spoiled = direction.clone()
        if spoiled.shape == (11, 8):
            spoiled[10] = NAN
        return spoiled

    predictor = Reshaped(change=directions(poison), after=3)
    for every in (1, 3):
        model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        from hybrid_predict import HybridEngine

        config = make_config(
            predictors={"embedding": predictor, "head": MomentumPredictor()}, sample_every=every
        )
        engine = HybridEngine(model, optimizer, config)
        for _ in range(8):
            engine.before_step()
            loss = model(torch.arange(10)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
        assert engine.ledger.rejected > 0
        assert all(torch.isfinite(p).all() for p in model.parameters())


def interrupted(tmp_path, monkeypatch):
    interrupt_lines("mlp", every=9)


def clock_jumps(tmp_path, monkeypatch):
    traces, ticks = [], iter(range(10**6, 0, -7))
    for jumping in (False, True):
        if jumping:
            for name in ("hybrid_predict.engine.perf_counter", "time.time"):
                monkeypatch.setattr(name, lambda: float(next(ticks)))
        bench = Bench(make_config())
        bench.train(12)
        traces.append(bench.trace())
        assert bench.engine.ledger.full_seconds >= 0 <= bench.engine.ledger.forecast_seconds
        check_goes_on(bench, 2)
    assert same_bits(*traces)


def renamed(delta):
    return WeightDelta(tuple(f"x.{n}" for n in delta.names), delta.directions, delta.factors)


NO_TRACE = (
    "The step leaves no trace: weights, buffers and optimizer state are as before it, bit for bit. "
    "The verdict is *rejected*, and the run goes on; `HybridTrainer` trains the batch again."
)
PLAIN = (
    "Forecasts stop for good, with one warning and the reason in the ledger; from there on every "
    "bit is that of plain training from the base weights."
)
FORM = "`PredictorError` after the first full step, naming the predictor and what was expected."

NUMBERS = [
    *(
        Fault("Numbers", f"{what} at a forecast point", NO_TRACE, spoiled_at_a_forecast(name))
        for name, what in (
            ("nan-loss", "NaN in loss and gradients"),
            ("inf-loss", "Inf in loss and gradients"),
            ("nan-loss-only", "NaN in the loss only"),
            ("inf-loss-only", "Inf in the loss only"),
            ("one-gradient", "Inf in the gradient of one parameter only"),
        )
    ),
    Fault("Numbers", "any of these at base weights", "Nothing: the step is the user's own, bit for "
          "bit what it is without the plug-in.", spoiled_at_base),
    Fault("Numbers", "a loss ten times its mean at a forecast point", f"{NO_TRACE} Forecasts pause "
          "for 16 full steps, then begin again.", spike),
    Fault("Numbers", "a gradient a million times its length at a forecast point", NO_TRACE,
          gradient_burst),
    Fault("Numbers", "forecasts of the wrong sign, 30 times too long, of a predictor "
          "that takes its own forecasts out",
          "The monitor shrinks horizons, pauses forecasts and hands over to plain training; the "
          "weights stay finite. Of a predictor that averages its own forecasts in, the same "
          "only stalls the training, and no alarm comes.", uphill),
    Fault("Numbers", "alignment vanishes: forecasts of length zero", "Forecasts pause, each time "
          "longer; after the third pause plain training takes over.", nowhere),
]  # fmt: skip

PREDICTORS = [
    *(
        Fault("Predictors and horizons", what, PLAIN, predictor_raises(where, error))
        for what, where, error in (
            ("a predictor raises in `forecast`", "forecast", ZeroDivisionError),
            ("a predictor raises in `observe`", "observe", ZeroDivisionError),
            ("out of memory in `forecast`", "forecast", torch.OutOfMemoryError),
            ("out of memory in `observe`", "observe", MemoryError),
        )
    ),
    *(
        Fault("Predictors and horizons", f"{what} when it is shown the optimizer's own update {at}",
              happens, update_cannot_be_shown(error, after))
        for what, error in (
            ("a predictor raises", ZeroDivisionError),
            ("out of memory", torch.OutOfMemoryError),
        )
        for at, happens, after in (
            ("at base weights", f"{PLAIN} The update stays.", 1),
            ("at a forecast point", f"{PLAIN} That one batch is skipped without trace.", 5),
        )
    ),
    Fault("Predictors and horizons", "out of memory in the copy that makes a step undoable",
          f"{PLAIN} That one batch is skipped without trace.", copy_does_not_fit),
    Fault("Predictors and horizons", "a horizon rule raises", PLAIN, rule_raises),
    Fault("Predictors and horizons", "forecasts of a wrong shape", FORM,
          wrong_form(directions(lambda d: d.reshape(-1, 1)), "shape")),
    Fault("Predictors and horizons", "forecasts on a wrong device", FORM,
          wrong_form(directions(lambda d: d.to("meta")), "device cpu")),
    Fault("Predictors and horizons", "forecasts of other parameters", FORM,
          wrong_form(renamed, "names")),
    Fault("Predictors and horizons", "no forecast at all", FORM,
          wrong_form(lambda d: None, "a WeightDelta")),
    Fault("Predictors and horizons", "NaN in the directions of a forecast", f"{NO_TRACE} After "
          "`patience` of them in a row plain training takes over.",
          broken_numbers(directions(lambda d: d * NAN), 2.0)),
    Fault("Predictors and horizons", "NaN in the factors of a forecast", "It is rejected before a "
          "weight moves. After `patience` of them in a row plain training takes over.",
          broken_numbers(lambda d: d.scaled(NAN), 0.0)),
    Fault("Predictors and horizons", "NaN in a row that the batch does not visit", NO_TRACE,
          untouched_row),
]  # fmt: skip

PROCESS = [
    Fault("Process", "Ctrl-C anywhere in the plug-in, in every hook", "It goes on to the caller. "
          "Weights and optimizer state are those before the step or those after it, never a "
          "mixture.", interrupted),
    Fault("Process", "the optimizer itself raises at a forecast point", "Its error goes on to the "
          "caller; weights are base weights again.", optimizer_raises),
    Fault("Process", "clocks that run backwards", "Nothing: no decision reads them, and counted "
          "seconds never fall.", clock_jumps),
]  # fmt: skip

FAULTS = [*NUMBERS, *PREDICTORS, *PROCESS, *AROUND]
