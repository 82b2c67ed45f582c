"""Full steps that do not come to their usual end: an update that raises, an engine that goes."""

import copy
import pickle

import pytest
import torch
from loops import NAN, Bench, make_config, weights

from hybrid_predict import UsageError, Verdict


class Flaky(torch.optim.AdamW):
    """Raises once when it is told to."""

    failing = False

    def step(self, closure=None):
        if self.failing:
            self.failing = False
            raise MemoryError("out of memory")
        return super().step(closure)


def verifying(optimizer=None):
    """A run inside the full step that verifies its first predicted step."""
    bench = Bench(make_config())
    if optimizer:
        bench.optimizer = optimizer(bench.model.parameters(), lr=1e-2)
        bench.engine.replace_optimizer(bench.optimizer)
    bench.train(3)
    bench.engine.before_step()
    assert bench.engine._step.predicted == 1
    return bench


def take_update(bench, factor=1.0):
    bench.optimizer.zero_grad()
    (factor * bench.loss()).backward()
    bench.optimizer.step()


@pytest.mark.parametrize("factor", [1.0, NAN])
def test_an_update_that_raised_and_is_made_again_counts_once(factor):
    """Whatever its gradients were, those of the second call decide."""
    bench = verifying(Flaky)
    bench.optimizer.failing = True
    with pytest.raises(MemoryError):
        take_update(bench, factor)
    before = weights(bench.model)
    take_update(bench)
    assert all(p.grad is not None for p in bench.model.parameters())
    record = bench.engine.after_step()
    assert (record.verdict, record.ticks) == (Verdict.STANDS, 2)
    assert record.gradients.total_norm < float("inf")
    assert not any(torch.equal(p, before[name]) for name, p in bench.model.named_parameters())
    assert not [e for e in bench.engine.ledger.events if "undone" in e["reason"]]


@pytest.mark.parametrize(
    ("factor", "undone"),
    [(None, True), (1.0, False), (NAN, True)],
    ids=["before the update", "after it", "after one that was held back"],
)
def test_an_engine_that_goes_undoes_and_counts_predicted_steps_that_do_not_stand(factor, undone):
    bench = verifying()
    if factor is not None:
        take_update(bench, factor)
    moved = weights(bench.model)
    bench.engine.detach()
    assert bench.engine.ledger.undone_steps == undone
    stayed = [torch.equal(p, moved[name]) for name, p in bench.model.named_parameters()]
    assert all(stayed) == (factor is not None)


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, pickle.dumps])
def test_an_engine_is_not_copied(again):
    with pytest.raises(UsageError, match="HybridEngine: expected its state_dict"):
        again(Bench(make_config()).engine)
