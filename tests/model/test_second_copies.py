"""An optimizer with a second copy of the weights is refused; a state that looks like one is not."""

import pytest
import torch
from loops import full_step, net

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.errors import UnsupportedSetupError


def average(state, p, before):
    """An average of the weights that nothing but validation uses."""
    state.setdefault("shadow", p.clone()).lerp_(p, 0.01)


def master(state, p, before):
    """A 32-bit copy of 16-bit weights, which alone is updated."""
    p.copy_(state.setdefault("master", before.float()).add_(p.float() - before))


class Keeps(torch.optim.SGD):
    """Keeps something in its state that looks like a copy of the weights."""

    keep = None

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        before = [p.clone() for p in group["params"]]
        super().step(closure)
        for p, old in zip(group["params"], before, strict=True):
            self.keep(self.state[p], p, old)


def one_update(keep, dtype):
    model = net(6, 24, 24, 1).to(dtype)
    optimizer = Keeps(model.parameters(), lr=1e-2)
    optimizer.keep = keep
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    x = torch.ones(4, 6, dtype=dtype)
    return full_step(engine, [optimizer], lambda: model(x).square().mean())


def test_a_state_that_looks_like_the_weights_is_no_second_copy_if_they_do_not_return_to_it():
    assert one_update(average, torch.float32).ticks == 1


def test_an_optimizer_that_updates_a_second_copy_is_refused():
    with pytest.raises(UnsupportedSetupError, match=r"as with a second copy .*use SGD"):
        one_update(master, torch.bfloat16)
