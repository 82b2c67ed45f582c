"""Random interleavings of everything a loop may do, against what must always hold."""

import gc
import io
import math

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
from loops import NAN, Bench, make_config, same_bits, spoil_with, weights

from hybrid_predict import CheckpointError, HybridConfig, Phase, UsageError, Verdict
from hybrid_predict.accounts.clock import Clock

STEPS = 20


class ClockMachine(RuleBasedStateMachine):
    """A clock whose verdicts come in order, some full steps later."""

    @initialize(
        total=st.integers(1, 60),
        pattern=st.one_of(
            st.sampled_from([1, 1.3, 1.5, 2, 3, "auto"]).map(lambda x: {"speedup": x}),
            st.tuples(st.integers(1, 3), st.integers(1, 3)).map(
                lambda pair: {"full_steps": pair[0], "predict_steps": pair[1]}
            ),
        ),
        warmup=st.one_of(st.integers(0, 20), st.floats(0, 0.4)),
        cooldown=st.one_of(st.integers(0, 20), st.floats(0, 0.4)),
    )
    def start(self, total, pattern, warmup, cooldown):
        self.config = HybridConfig(
            total_steps=total, warmup_steps=warmup, cooldown_steps=cooldown, **pattern
        )
        self.clock = Clock(self.config)
        self.pending, self.ticks, self.made = [], [], 0

    @precondition(lambda self: not self.clock.done)
    @rule(make=st.booleans(), read=st.integers(0, 3), stands=st.booleans())
    def step(self, make, read, stands):
        at, due = self.clock.position, self.clock.due
        count = due if make else 0
        if count:
            assert self.clock.warmup <= at
            assert at + count <= self.clock.total - self.clock.cooldown
        self.clock.predict(count)
        self.made += count
        self.pending.append(count)
        drain = self.clock.closing
        turn = [self.pending.pop(0) for _ in range(len(self.pending) if drain else
                                                   min(read, len(self.pending)))]  # fmt: skip
        standing = sum(turn) if stands else 0
        self.ticks.append(self.clock.advance(standing, sum(turn) - standing))

    @rule()
    def fall_back(self):
        self.clock.fall_back()

    @rule()
    def save_and_load(self):
        fresh = Clock(self.config)
        fresh.load_state_dict(self.clock.state_dict())
        assert (fresh.phase(), fresh.due) == (self.clock.phase(), self.clock.due)
        self.clock = fresh

    @invariant()
    def ticks_add_up_within_the_length(self):
        assert self.clock.full_steps == len(self.ticks)
        assert self.clock.steps == sum(self.ticks) <= self.clock.total
        assert all(tick >= 1 for tick in self.ticks)
        assert self.clock.unread == sum(self.pending)

    @invariant()
    def nothing_is_predicted_after_falling_back(self):
        assert not self.clock.plain or self.clock.due == 0
        assert self.clock.plain is (self.clock.phase() is Phase.PLAIN)


class EngineMachine(RuleBasedStateMachine):
    """An engine under full steps of every kind; between them the weights are verified ones."""

    @initialize(
        lag=st.sampled_from([0, 2]),
        changes=st.sampled_from(
            [{}, {"shadow": True}, {"speedup": 1}, {"updates": {}}, {"speedup": 1.5},
             {"full_steps": 1, "predict_steps": 2}]
        ),
        model=st.sampled_from(["mlp", "conv", "partly-trained"]),
        optimizer=st.sampled_from(["adamw", "adamw-fused", "sgd"]),
    )  # fmt: skip
    def start(self, lag, changes, model, optimizer):
        self.kind = model, optimizer
        self.config = make_config(total_steps=STEPS, lag=lag, **changes)
        self.bench = Bench(self.config, *self.kind)
        self.base = weights(self.bench.model)
        self.records, self.left = [], 0

    @property
    def engine(self):
        return self.bench.engine

    def trace(self):
        trace = self.bench.trace()
        return trace["model"], trace["optimizer"]

    def close(self, record):
        self.records.append(record)
        self.base = weights(self.bench.model)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def full_step(self):
        self.close(self.bench.step())

    @precondition(lambda self: not self.engine.done and self.engine.clock.due)
    @rule()
    def bad_batch(self):
        before = self.trace()
        self.engine.before_step()
        predicted = self.engine._step.predicted
        self.engine.abandon()
        self.left += predicted
        if not predicted:
            return
        record = self.bench.step(spoil_with(factor=NAN))
        assert record.predicted == predicted
        assert same_bits(self.trace(), before)
        self.close(record)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def accumulated_step_with_a_save_inside(self):
        bench = self.bench
        outside = self.engine.state_dict()["clock"]
        self.engine.before_step()
        (bench.loss() / 2).backward()
        assert self.engine.state_dict()["clock"] == outside
        (bench.loss() / 2).backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        self.close(self.engine.after_step())

    @precondition(lambda self: not self.engine.done)
    @rule()
    def step_without_an_update(self):
        before = self.trace()
        self.engine.before_step()
        record = self.engine.after_step(self.bench.loss().detach())
        if record.predicted:
            assert same_bits(self.trace(), before)
        assert same_bits(weights(self.bench.model), self.base)
        self.close(record)

    @precondition(lambda self: not self.engine.done)
    @rule(where=st.sampled_from(["forward", "backward", "update"]))
    def broken_off(self, where):
        bench, before = self.bench, self.trace()
        self.engine.before_step()
        predicted = self.engine._step.predicted
        loss = bench.loss() if predicted else None
        if where != "forward" and predicted:
            loss.backward()
        if where == "update" and predicted:
            rate = bench.optimizer.param_groups[0].pop("lr")
            with pytest.raises(KeyError):
                bench.optimizer.step()
            bench.optimizer.param_groups[0]["lr"] = rate
        self.engine.abandon()
        bench.optimizer.zero_grad()
        if where != "update" or not self.engine._state.plain:
            assert same_bits(before[0], self.trace()[0])
        self.left += predicted

    @precondition(lambda self: not self.engine.done)
    @rule()
    def calls_out_of_order(self):
        with pytest.raises(UsageError):
            self.engine.after_step()
        self.engine.abandon()

    @precondition(lambda self: not self.engine.done)
    @rule(kind=st.sampled_from(["version", "clock", "tensors", "verdicts"]))
    def refused_load(self, kind):
        kept = self.engine.state_dict()
        with pytest.raises(CheckpointError):
            self.engine.load_state_dict({**kept, kind: {"total": 3}})
        assert same_bits(self.engine.state_dict(), kept)

    @rule()
    def continue_in_fresh_objects(self):
        random = torch.get_rng_state()
        fresh = Bench(self.config, *self.kind)
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
    def weights_between_steps_are_verified(self):
        assert not self.engine.in_step
        assert same_bits(weights(self.bench.model), self.base)
        assert all(torch.isfinite(t).all() for t in self.bench.model.state_dict().values())

    @invariant()
    def no_copy_stays_open(self):
        assert self.engine._step is None
        assert not self.engine._open
        assert self.engine._buffers._copies is None
        assert all(group._pending is None for group in self.engine._state.groups)
        assert all(p.grad is None for p in self.bench.model.parameters())

    @invariant()
    def predicted_steps_are_those_of_the_phase(self):
        for record in self.records:
            assert (record.predicted > 0) == (record.phase is Phase.PREDICT)
            assert record.verdict in (None, *Verdict)
            assert math.isfinite(record.ticks)
        assert all(record.predicted == 0 for record in self.records[:1])

    @invariant()
    def accounts_add_up(self):
        ledger, clock = self.engine.ledger, self.engine.clock
        assert ledger.full_steps == len(self.records) == clock.full_steps
        assert ledger.steps == sum(r.ticks for r in self.records) == clock.steps <= STEPS
        assert ledger.full_steps + ledger.predicted_steps == ledger.steps
        made = sum(r.predicted for r in self.records) + self.left
        assert made == ledger.predicted_steps + ledger.undone_steps + clock.unread
        assert clock.unread == 0 or not clock.done
        if self.config.shadow or self.config.speedup == 1:
            assert made == 0

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        model, optimizer = self.bench.model, self.bench.optimizer
        self.engine.before_step()
        self.engine.detach()
        gc.collect()
        assert same_bits(weights(model), self.base)
        assert not optimizer._optimizer_step_pre_hooks


TestClock = ClockMachine.TestCase
TestClock.settings = settings(max_examples=40, stateful_step_count=30)
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=12, stateful_step_count=12)
