"""What is found about an optimizer: decay, growing updates, and what is not."""

from functools import partial

import pytest
import torch
from loops import Run, net, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, MomentumPredictor, OptimizerWrapper

RATE, DECAY = 1e-2, 0.1


class Own(torch.optim.Optimizer):
    """Descends along what a rule makes of a parameter, its state and its group."""

    def __init__(self, params, rule, **options):
        super().__init__(params, {"lr": RATE, "weight_decay": DECAY, **options})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(self.rule(p, self.state[p], group), alpha=group["lr"])


def shrunk(p, state, group):
    p.mul_(1 - 0.01 * group["weight_decay"])
    return p.grad


def lion(p, state, group):
    """Chen et al., Symbolic Discovery of Optimization Algorithms (2023)."""
    average, (first, second) = state.setdefault("exp_avg", torch.zeros_like(p)), group["betas"]
    p.mul_(1 - group["lr"] * group["weight_decay"])
    sign = average.lerp(p.grad, 1 - first).sign()
    average.lerp_(p.grad, 1 - second)
    return sign


def made(name, **options):
    return partial(getattr(torch.optim, name), **{"lr": RATE, "weight_decay": DECAY, **options})


DECOUPLED = {
    "lion": (partial(Own, rule=lion, betas=(0.9, 0.99)), RATE * DECAY),
    "adamw": (made("AdamW"), RATE * DECAY),
    "adamw, fused": (made("AdamW", fused=True), RATE * DECAY),
    "adamw, rate in a tensor": (made("AdamW", lr=torch.tensor(RATE)), RATE * DECAY),
    "muon": (made("Muon"), RATE * DECAY),
    "sgd": (made("SGD"), RATE * DECAY),
    "by fraction": (partial(Own, rule=shrunk), 0.01 * DECAY),
}
"""Optimizers that shrink the weights, and by what fraction in one update."""

COUPLED = {
    "sgd, momentum": made("SGD", momentum=0.9),
    "adam": made("Adam"),
    "radam": made("RAdam"),  # whose first updates look like decoupled decay
}
"""Optimizers that add the decay to the gradient."""

NONE = {"adamw": made("AdamW", weight_decay=0.0), "rprop": lambda ps: torch.optim.Rprop(ps, RATE)}
WANTED = {
    **{name: (make, shrink, 0.0) for name, (make, shrink) in DECOUPLED.items()},
    **{name: (make, 0.0, DECAY) for name, make in COUPLED.items()},
    **{f"{name}, no decay": (make, 0.0, 0.0) for name, make in NONE.items()},
}


def weight():
    return nn.Parameter(torch.ones(4, 4))


@pytest.mark.parametrize("name", WANTED)
def test_decay_is_found_whatever_the_class_is_called(name):
    make, shrink, coupled = WANTED[name]
    options = OptimizerWrapper(make([p := weight()])).options()[id(p)]
    assert options.shrink == pytest.approx(shrink, rel=1e-3)
    assert options.coupled == coupled


def test_the_fraction_follows_the_rate():
    optimizer = DECOUPLED["adamw"][0]([p := weight()])
    wrapper = OptimizerWrapper(optimizer)
    for rate in (RATE / 7, 0.0, torch.tensor(RATE)):
        optimizer.param_groups[0]["lr"] = rate
        assert wrapper.options()[id(p)].shrink == pytest.approx(float(rate) * DECAY, rel=1e-3)
    rate.mul_(2.0)  # in place, as a scheduler does
    assert wrapper.options()[id(p)].shrink == pytest.approx(2 * RATE * DECAY, rel=1e-3)


@pytest.mark.parametrize("name", ["by fraction", "adamw", "sgd, momentum"])
def test_a_schedule_of_the_decay_is_followed(name):
    make, full, is_coupled = WANTED[name]
    optimizer = make([p := weight()])
    wrapper = OptimizerWrapper(optimizer)
    for decay in (0.03, 0.04, 0.0, 2e-5, 0.5):
        optimizer.param_groups[0]["weight_decay"] = decay
        options = wrapper.options()[id(p)]
        assert options.shrink == pytest.approx(full * decay / DECAY, rel=1e-3)
        assert options.coupled == pytest.approx(decay if is_coupled else 0.0)


def negative(ps, **options):
    optimizer = torch.optim.SGD(ps, **options)
    optimizer.param_groups[0]["lr"] *= -1
    return optimizer


UPHILL = {"maximize": partial(torch.optim.SGD, maximize=True), "negative rate": negative}


@pytest.mark.parametrize("name", UPHILL)
def test_going_up_the_negative_loss_is_going_down_the_loss(name):
    def loss(sign, model, k):
        x = normal(k, 32, 6)
        return sign * (model(x) - x.prod(1, keepdim=True).tanh()).square().mean()

    predictors, ends = {"hidden": MomentumPredictor(gated=False)}, []
    config = HybridConfig(total_steps=30, max_overhead=1e9, predictors=predictors, watch_loss=False)
    for sign, make in ((1.0, torch.optim.SGD), (-1.0, UPHILL[name])):
        model = net(6, 24, 24, 24, 1)
        optimizer = make(model.parameters(), lr=3e-2, momentum=0.9)
        ledger = Run(model, optimizer, config, partial(loss, sign)).finish().engine.ledger
        assert ledger.corrected_steps > 0 and ledger.predicted_steps > 0
        ends.append(weights(model))
    assert same_bits(*ends)
