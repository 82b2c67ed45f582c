"""Full steps that do not come to their usual end: an update that raises, an engine that goes."""

import copy
import pickle

import pytest
import torch
from loops import Bench, make_config

from hybrid_predict import UsageError, Verdict


class Flaky(torch.optim.AdamW):
    """Raises once when it is told to."""

    failing = False

    def step(self, closure=None):
        if self.failing:
            self.failing = False
            raise MemoryError("out of memory")
        return super().step(closure)


def flaky_bench():
    bench = Bench(make_config())
    bench.optimizer = Flaky(bench.model.parameters(), lr=1e-2)
    bench.engine.replace_optimizer(bench.optimizer)
    return bench


def until_predicted(bench):
    """Open the full step that verifies the first predicted step."""
    engine = bench.engine
    while True:
        engine.before_step()
        if engine._state.unread:
            return
        take_update(bench)
        engine.after_step()


def take_update(bench, scale=1.0):
    bench.optimizer.zero_grad()
    (scale * bench.loss()).backward()
    bench.optimizer.step()


@pytest.mark.parametrize("scale", [1.0, float("nan")])
def test_an_update_that_raised_and_is_made_again_counts_once(scale):
    """Whatever its gradients were, those of the second call decide."""
    bench = flaky_bench()
    until_predicted(bench)
    bench.optimizer.failing = True
    with pytest.raises(MemoryError):
        take_update(bench, scale)
    before = [p.detach().clone() for p in bench.model.parameters()]
    take_update(bench)
    assert all(p.grad is not None for p in bench.model.parameters())
    record = bench.engine.after_step()
    assert (record.verdict, record.ticks) == (Verdict.STANDS, 2)
    assert record.gradients.total_norm < float("inf")
    assert not any(map(torch.equal, before, bench.model.parameters()))
    assert not [e for e in bench.engine.ledger.events if "undone" in e["reason"]]


@pytest.mark.parametrize("updated", [False, True])
def test_an_engine_that_goes_after_the_update_leaves_verified_steps_uncounted(updated):
    """They are undone where no update has verified them, and only then counted as undone."""
    bench = Bench(make_config())
    until_predicted(bench)
    moved = [p.detach().clone() for p in bench.model.parameters()]
    if updated:
        take_update(bench)
        moved = [p.detach().clone() for p in bench.model.parameters()]
    bench.engine.detach()
    assert bench.engine.ledger.undone_steps == (not updated)
    stayed = map(torch.equal, moved, bench.model.parameters())
    assert all(stayed) == updated


def test_an_engine_that_goes_after_an_update_that_was_held_back_counts_it_as_undone():
    bench = Bench(make_config())
    until_predicted(bench)
    take_update(bench, float("nan"))
    bench.engine.detach()
    assert bench.engine.ledger.undone_steps == 1


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, pickle.dumps])
def test_an_engine_is_not_copied(again):
    bench = Bench(make_config())
    bench.step()
    with pytest.raises(UsageError, match="HybridEngine: expected its state_dict"):
        again(bench.engine)
