"""Random interleavings of everything a loop may do, against what must always hold."""

import gc
import math

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from loops import NAN, Bench, hurry, load, make_config, same_bits, save, spoil_with, weights

from hybrid_predict import Verdict
from hybrid_predict.errors import CheckpointError, UsageError
from hybrid_predict.ledger import Phase

STEPS = 20


class EngineMachine(RuleBasedStateMachine):
    """An engine under full steps of every kind; between them the weights are verified ones."""

    @initialize(
        changes=st.sampled_from(
            [{}, {"shadow": True}, {"speedup": 1}, {"updates": {}}, {"speedup": 1.5},
             {"full_steps": 1, "predict_steps": 2}, {"speedup": "auto"}]
        ),
        model=st.sampled_from(["mlp", "conv", "partly-trained"]),
        optimizer=st.sampled_from(["adamw", "adamw-fused", "sgd"]),
    )  # fmt: skip
    def start(self, changes, model, optimizer):
        self.kind = model, optimizer
        self.config = make_config(total_steps=STEPS, **changes)
        self.bench = Bench(self.config, *self.kind)
        if self.config.paced:
            hurry(self.engine)
        self.base = weights(self.bench.model)
        self.records, self.left = [], 0

    @property
    def engine(self):
        return self.bench.engine

    @property
    def due(self):
        policy = self.engine._policy.predicting
        return policy and policy.due(self.engine.position)

    def counts(self):
        saved = self.engine.state_dict()
        names = ("steps", "full_steps", "predicted_steps", "undone_steps")
        return [saved["ledger"][name] for name in names]

    def close(self, record):
        self.records.append(record)
        self.base = weights(self.bench.model)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def full_step(self):
        self.close(self.bench.step())

    @precondition(lambda self: not self.engine.done and self.due)
    @rule()
    def bad_batch(self):
        before = self.bench.kept()
        self.engine.before_step()
        predicted = self.engine._step.predicted
        self.engine.abandon()
        self.left += predicted
        if not predicted:
            return
        record = self.bench.step(spoil_with(factor=NAN))
        assert record.predicted == predicted
        assert same_bits(self.bench.kept(), before)
        self.close(record)

    @precondition(lambda self: not self.engine.done)
    @rule()
    def accumulated_step_with_a_save_inside(self):
        bench = self.bench
        outside = self.counts()
        self.engine.before_step()
        (bench.loss() / 2).backward()
        assert self.counts() == outside
        (bench.loss() / 2).backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        self.close(self.engine.after_step())

    @precondition(lambda self: not self.engine.done)
    @rule()
    def step_without_an_update(self):
        before = self.bench.kept()
        self.engine.before_step()
        record = self.engine.after_step(self.bench.loss().detach())
        if record.predicted:
            assert same_bits(self.bench.kept(), before)
        assert same_bits(weights(self.bench.model), self.base)
        self.close(record)

    @precondition(lambda self: not self.engine.done)
    @rule(where=st.sampled_from(["forward", "backward", "update"]))
    def broken_off(self, where):
        bench, before = self.bench, self.bench.kept()
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
            assert same_bits(before[0], self.bench.kept()[0])
        self.left += predicted

    @precondition(lambda self: not self.engine.done)
    @rule()
    def calls_out_of_order(self):
        with pytest.raises(UsageError):
            self.engine.after_step()
        self.engine.abandon()

    @precondition(lambda self: not (self.engine.done or self.engine._state.plain))
    @rule(kind=st.sampled_from(["version", "ledger", "tensors", "policy"]))
    def refused_load(self, kind):
        kept = self.engine.state_dict()
        with pytest.raises(CheckpointError):
            self.engine.load_state_dict({**kept, kind: {"total": 3}})
        assert same_bits(self.engine.state_dict(), kept)

    @rule()
    def continue_in_fresh_objects(self):
        self.bench = load(save(self.bench), self.config, *self.kind)

    @invariant()
    def weights_between_steps_are_verified(self):
        assert not self.engine.in_step
        assert same_bits(weights(self.bench.model), self.base)
        assert all(torch.isfinite(t).all() for t in self.bench.model.state_dict().values())

    @invariant()
    def no_copy_stays_open(self):
        assert self.engine._step is None
        assert not self.engine._open
        assert not self.bench.model._state_dict_pre_hooks
        assert all(p.grad is None for p in self.bench.model.parameters())

    @invariant()
    def predicted_steps_are_those_of_the_phase(self):
        for record in self.records:
            assert (record.predicted > 0) == (record.phase is Phase.PREDICT)
            assert record.verdict in (None, *Verdict)
            assert math.isfinite(record.ticks)
        assert all(record.predicted == 0 for record in self.records[:1])

    @invariant()
    def counts_add_up(self):
        ledger = self.engine.ledger
        assert ledger.full_steps == len(self.records)
        assert ledger.steps == sum(r.ticks for r in self.records) <= STEPS
        assert ledger.full_steps + ledger.predicted_steps == ledger.steps
        made = sum(r.predicted for r in self.records) + self.left
        assert made == ledger.predicted_steps + ledger.undone_steps
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


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=12, stateful_step_count=12)
