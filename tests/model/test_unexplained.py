"""Updates that nothing explains stay the optimizer's own; second copies are refused."""

from functools import partial

import pytest
import torch
from loops import full_step, same_bits
from own_optimizers import RATE, Own, net, run

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.errors import UnsupportedSetupError


def anchored(p, state, group):
    """L2-SP: decays towards where the weights were at first."""
    return p.grad + group["mu"] * (p - state.setdefault("anchor", p.clone()))


def following(p, state, group):
    """Adds a multiple of where the weights were one update ago."""
    last, state["last"] = state.get("last", p.clone()), p.clone()
    return p.grad + 0.1 * (p - last)


def own(descended, **options):
    return lambda ps: Own(ps, descended=descended, **options)


class Odd(Own):
    """Cannot update a parameter that it was not made for."""

    def __init__(self, params):
        super().__init__(params)
        self.known = {id(p) for group in self.param_groups for p in group["params"]}

    def descended(self, p, state, group):
        if id(p) not in self.known:
            raise KeyError("not mine")
        return p.grad


DECAY = "decay could not be found out"
UNEXPLAINED = {
    "a pull to the start": (own(anchored, mu=0.1), DECAY),
    "a push from the last weights": (own(following), DECAY),
    "decay by the square of the rate": (
        own(lambda p, _, group: p.grad + group["lr"] * p, adam=True),
        DECAY,
    ),
    "another parameter": (Odd, DECAY),
    "growing": (lambda ps: torch.optim.Adafactor(ps, lr=RATE), "updates grow with the weights"),
}


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_matrices_of_such_an_optimizer_are_not_corrected_and_it_is_said(name):
    make, reason = UNEXPLAINED[name]
    ends = []
    for plugged in (False, True):
        model = net()
        torch.manual_seed(1)
        engine = run(model, make(list(model.parameters())), 10, plugged, speedup=1)
        ends.append([p.detach() for p in model.parameters()])
    assert same_bits(*ends)
    assert engine.ledger.corrected_steps == 0
    assert [reason in event["reason"] for event in engine.ledger.events] == [True]


def average(state, p, before):
    """An average of the weights that nothing but validation uses."""
    state.setdefault("shadow", p.clone()).lerp_(p, 0.01)


def previous(state, p, before):
    """The weights before the update, from which some optimizers compute a step size."""
    state["slow_previous"] = before


def returning(updates, state, p, before):
    """Slow weights, to which the weights come back every few updates."""
    slow = state.setdefault("slow", p.clone())
    state["updates"] = state.get("updates", 0) + 1
    if state["updates"] % updates == 0:
        p.copy_(slow.lerp_(p, 0.5))


def master(state, p, before):
    """A 32-bit copy of 16-bit weights, which alone is updated."""
    if p.dtype == torch.bfloat16:
        p.copy_(state.setdefault("master", before.float()).add_(p.float() - before))


class Keeps(Own):
    """Keeps something in its state that looks like a copy of the weights."""

    def __init__(self, params, keep):
        super().__init__(params)
        self.keep = keep

    def descended(self, p, state, group):
        self.before = p.clone()
        return p.grad

    def finish(self, p, state, group):
        self.keep(state, p, self.before)


def one_update(keep, dtype=torch.float32):
    model = net().to(dtype)
    optimizer = Keeps(model.parameters(), keep)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    x = torch.ones(4, 6, dtype=dtype)
    return full_step(engine, [optimizer], lambda: model(x).square().mean())


@pytest.mark.parametrize("keep", [average, previous], ids=lambda f: f.__name__)
def test_a_state_that_looks_like_the_weights_is_no_second_copy_if_they_do_not_return_to_it(keep):
    assert one_update(keep).ticks == 1


@pytest.mark.parametrize(
    ("keep", "dtype"),
    [
        (partial(returning, 60), torch.float32),
        (master, torch.bfloat16),
    ],
)
def test_an_optimizer_with_a_second_copy_of_the_weights_is_refused(keep, dtype):
    with pytest.raises(UnsupportedSetupError, match=r"as with a second copy .*use SGD"):
        one_update(keep, dtype)
