"""Random interleavings of everything a loop may do, against what must always hold."""

import gc
import io
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from faulty import Interrupt, state
from hybrid_predict import CheckpointError, HybridConfig, Phase
from hybrid_predict.phases import LEARNING, Clock
from loops import NAN, Bench, make_config, same_bits, spoil_with, weights


class ClockMachine(RuleBasedStateMachine):
    """A clock whose forecasts get their verdicts some full steps later."""

    @initialize(
        total=st.integers(1, 60),
        speedup=st.sampled_from([1, 1.3, 1.5, 2, 3, "auto"]),
        warmup=st.floats(0, 0.4),
        cooldown=st.floats(0, 0.4),
        period=st.integers(1, 3),
        correct_steps=st.integers(0, 2),
    )
    def start(self, total, speedup, warmup, cooldown, period, correct_steps):
        self.config = HybridConfig(
            total_steps=total,
            speedup=speedup,
            warmup_fraction=warmup,
            cooldown_fraction=cooldown,
            period=period,
            correct_steps=correct_steps,
        )
        self.clock = Clock(self.config)
        self.warmup = math.ceil(warmup * total)
        self.pending = 0
        self.stood_for = Fraction(0)
        self.ticks = []

    @precondition(lambda self: not self.clock.done)
    @rule(
        verdict=st.sampled_from(["none", "accepted", "rejected"]),
        support=st.integers(0, 96).map(lambda part: 1 + part / 64),
    )
    def step(self, verdict, support):
        self.pending += self.clock.forecast_due
        read = verdict != "none" and self.pending > 0
        self.pending -= read
        credited = int(read and verdict == "accepted")
        if not self.clock.handed_over:
            auto = self.config.speedup == "auto"
            share = Fraction(support) - 1 if auto else self.clock.credit
            self.stood_for += credited * share
        self.ticks.append(self.clock.advance(credited, support))

    @rule()
    def hand_over(self):
        self.clock.hand_over()

    @rule()
    def save_and_load(self):
        fresh = Clock(self.config)
        fresh.load_state_dict(self.clock.state_dict())
        assert (fresh.phase, fresh.forecast_due) == (self.clock.phase, self.clock.forecast_due)
        self.clock = fresh

    @invariant()
    def forecasts_wait_for_warmup_and_stop_at_the_hand_over(self):
        if self.clock.phase is Phase.PREDICT:
            assert self.clock.equivalent_steps >= self.warmup
        assert not (self.clock.handed_over and self.clock.phase is not Phase.FULL)

    @invariant()
    def ticks_add_up_within_the_total(self):
        assert self.clock.full_steps == len(self.ticks)
        assert self.clock.equivalent_steps == sum(self.ticks) <= self.clock.total
        assert all(tick >= 1 for tick in self.ticks)

    @invariant()
    def nothing_is_credited_beyond_what_forecasts_stood_for(self):
        granted = self.clock.equivalent_steps - self.clock.full_steps
        assert granted <= self.stood_for
        if not (self.clock.done or self.clock.handed_over):
            most = self.clock.total
            if self.config.speedup != "auto":
                most -= round(most / Fraction(self.config.speedup).limit_denominator(1000))
            assert granted == math.floor(min(self.stood_for, most))


class Raising:
    """A predictor of which one method raises."""

    def __init__(self, real, method):
        self._real, self._method = real, method

    def __getattr__(self, name):
        if name == self._method:
            raise ZeroDivisionError("no more")
        return getattr(self._real, name)


class EngineMachine(RuleBasedStateMachine):
    """An engine under full steps of every kind; between them the weights are base weights."""

    @initialize(
        lag=st.sampled_from([0, 2]),
        patience=st.sampled_from([2, 32]),
        period=st.sampled_from([1, 2]),
        shadow=st.booleans(),
        model=st.sampled_from(["mlp", "partly-trained"]),
    )
    def start(self, lag, patience, period, shadow, model):
        self.model = model
        self.config = make_config(
            total_steps=16, lag=lag, patience=patience, period=period, shadow=shadow, speedup=2
        )
        self.bench = Bench(self.config, model)
        self.base = weights(self.bench.model)
        self.records = []

    @property
    def engine(self):
        return self.bench.engine

    def close(self, record):
        self.records.append(record)
        self.base = weights(self.bench.model)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def full_step(self):
        self.close(self.bench.step())

    @precondition(lambda self: not self.engine.done)
    @rule()
    def spoiled_forecast(self):
        forecast = self.engine.clock.forecast_due and self.engine.clock.full_steps > 0
        if self.config.shadow or not forecast:
            return
        record = self.bench.step(spoil_with(factor=NAN))
        assert record.horizon > 0
        assert same_bits(weights(self.bench.model), self.base)
        self.records.append(record)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def accumulated_step_with_a_save_inside(self):
        bench = self.bench
        self.engine.before_step()
        (bench.loss() / 2).backward()
        moved = weights(bench.model)
        with self.engine.base_weights():
            assert same_bits(weights(bench.model), self.base)
        assert same_bits(weights(bench.model), moved)
        saved = bench.model.state_dict()
        assert all(same_bits(saved[name], base) for name, base in self.base.items())
        (bench.loss() / 2).backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        self.close(self.engine.after_step())

    @precondition(lambda self: not self.engine.done)
    @rule()
    def exception_in_forward(self):
        self.engine.before_step()
        with self.engine.base_weights():
            assert same_bits(weights(self.bench.model), self.base)
        # The loop catches the exception and comes back with the next step.
        self.close(self.bench.step())

    @precondition(lambda self: not self.engine.done)
    @rule(where=st.sampled_from(["backward", "update", "update-interrupted"]))
    def broken_off(self, where):
        bench, before = self.bench, (self.base, state(self.bench)[1])
        self.engine.before_step()
        moved = self.engine.mapper.displaced
        bench.loss().backward()
        if where == "update" and moved:
            decay = bench.optimizer.param_groups[0].pop("weight_decay")
            with pytest.raises(KeyError):
                bench.optimizer.step()
            bench.optimizer.param_groups[0]["weight_decay"] = decay
        if where == "update-interrupted" and moved:
            with pytest.raises(KeyboardInterrupt), Interrupt(40):
                bench.optimizer.step()
        self.engine.abandon()
        bench.optimizer.zero_grad()
        assert same_bits(before, (weights(bench.model), state(bench)[1]))

    @precondition(lambda self: not self.engine.done)
    @rule(method=st.sampled_from(["forecast", "observe"]))
    def predictor_raises(self, method):
        groups = self.engine._forecaster._groups
        if not groups or self.engine.clock.handed_over or not self.engine._bound:
            return
        first, *others = groups
        raising = replace(first, predictor=Raising(first.predictor, method))
        self.engine._forecaster._groups = [raising, *others]
        record = self.bench.step()
        self.engine._forecaster._groups = groups
        if method == "observe" and record.phase in LEARNING:
            assert self.engine.clock.handed_over
        self.close(record)

    @precondition(lambda self: not self.engine.done)
    @rule(kind=st.sampled_from(["version", "clock", "verifier"]))
    def refused_load(self, kind):
        kept = self.engine.state_dict()
        with pytest.raises(CheckpointError):
            self.engine.load_state_dict({**kept, kind: {"total": 3}})
        assert same_bits(self.engine.state_dict(), kept)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def step_at_base_weights(self):
        self.engine.before_step(forecast=False)
        assert same_bits(weights(self.bench.model), self.base)
        loss = self.bench.loss()
        loss.backward()
        self.bench.optimizer.step()
        self.bench.optimizer.zero_grad()
        record = self.engine.after_step(loss)
        assert record.horizon == 0
        self.close(record)

    @rule()
    def continue_in_fresh_objects(self):
        random = torch.get_rng_state()
        fresh = Bench(self.config, self.model)
        torch.set_rng_state(random)
        fresh.model.load_state_dict(self.bench.model.state_dict())
        fresh.optimizer.load_state_dict(self.bench.optimizer.state_dict())
        buffer = io.BytesIO()
        torch.save(self.engine.state_dict(), buffer)
        buffer.seek(0)
        fresh.engine.load_state_dict(torch.load(buffer, weights_only=True))
        fresh.taken = self.bench.taken
        self.bench = fresh

    @invariant()
    def weights_between_steps_are_base_weights(self):
        assert not self.engine.in_step
        assert same_bits(weights(self.bench.model), self.base)
        assert all(torch.isfinite(p).all() for p in self.bench.model.parameters())

    @invariant()
    def no_forecast_before_the_end_of_warmup(self):
        for record in self.records:
            assert record.horizon == 0 or record.phase is Phase.PREDICT
        assert all(record.horizon == 0 for record in self.records[:2])

    @invariant()
    def the_ledger_adds_up(self):
        ledger = self.engine.ledger
        assert ledger.full_steps == len(self.records)
        assert ledger.equivalent_steps == sum(r.ticks for r in self.records) <= 16
        credited = sum(r.ticks - 1 for r in self.records)
        assert ledger.full_steps + credited == ledger.equivalent_steps
        read = ledger.accepted + ledger.shrunk + ledger.rejected
        assert 0 <= ledger.forecasts - read <= self.config.lag
        assert not (self.config.shadow and credited)

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        model, optimizer = self.bench.model, self.bench.optimizer
        self.engine.before_step()
        self.engine.detach()
        gc.collect()
        assert same_bits(weights(model), self.base)
        assert not model._state_dict_hooks
        assert not optimizer._optimizer_step_pre_hooks


TestClock = ClockMachine.TestCase
TestClock.settings = settings(max_examples=40, stateful_step_count=30)
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=15, stateful_step_count=14)
