"""States that look like a second copy of the weights, and those to which weights return."""

import pytest
import torch
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, UnsupportedSetupError


class Keeps(torch.optim.SGD):
    """Keeps something in its state that looks like a copy of the weights.

    Args:
        keep: Called with state, parameter, and the weights before and after every update.
    """

    def __init__(self, params, keep):
        super().__init__(params, lr=0.01)
        self.keep = keep

    @torch.no_grad()
    def step(self, closure=None):
        before = [p.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p, old in zip(parameters, before, strict=True):
            self.keep(self.state[p], p, old)


def average(state, p, before):
    """An average of the weights that nothing but validation uses."""
    state.setdefault("shadow", p.clone()).lerp_(p, 0.01)


def previous(state, p, before):
    """The weights before the update, from which some optimizers compute a step size."""
    state["slow_previous"] = before


def zero(state, p, before):
    """A state that is zero, as the weights were at the start."""
    state["slow_mean"] = torch.zeros_like(p)


def returns_late(state, p, before):
    """Slow weights, to which the weights come back so seldom that the probe does not see it."""
    slow = state.setdefault("slow", p.clone())
    state["count"] = state.get("count", 0) + 1
    if state["count"] % 60 == 0:
        p.copy_(slow.lerp_(p, 0.5))


def master(state, p, before):
    """A 32-bit copy of 16-bit weights, which alone is updated."""
    if p.dtype == torch.bfloat16:
        p.copy_(state.setdefault("master", before.float()).add_(p.float() - before))


def one_update(keep, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 1)).to(
        dtype
    )
    if keep is zero:
        for p in model[2].parameters():
            nn.init.zeros_(p)
    optimizer = Keeps(model.parameters(), keep)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    engine.before_step()
    model(torch.ones(4, 6, dtype=dtype)).square().mean().backward()
    optimizer.step()
    return engine.after_step()


@pytest.mark.parametrize("keep", [average, previous, zero], ids=lambda f: f.__name__)
def test_a_state_that_looks_like_the_weights_is_no_second_copy_if_they_do_not_return_to_it(keep):
    assert one_update(keep, torch.float32).ticks == 1


@pytest.mark.parametrize(
    ("keep", "dtype", "name"),
    [(returns_late, torch.float32, "slow"), (master, torch.bfloat16, "master")],
)
def test_a_state_to_which_weights_return_is_refused_by_its_name(keep, dtype, name):
    with pytest.raises(UnsupportedSetupError, match=f"its state '{name}' holds a second copy"):
        one_update(keep, dtype)
