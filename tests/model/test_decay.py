"""What is found about an optimizer: decay, growing updates, and what is not."""

import pytest
import torch
from loops import same_bits
from own_optimizers import RATE, Lion, Own, net, run
from torch import nn

from hybrid_predict import MomentumPredictor, OptimizerWrapper
from hybrid_predict.optimizers.decay import found_rule

DECAY = 0.1


def own(descended, **options):
    return lambda ps: Own(ps, descended=descended, **options)


def shrunk(p, fraction):
    p.mul_(1 - fraction)
    return p.grad


def made(name, **options):
    cls = getattr(torch.optim, name)
    return lambda ps: cls(ps, **{"lr": RATE, "weight_decay": DECAY, **options})


DECOUPLED = {
    "lion": (lambda ps: Lion(ps, weight_decay=DECAY), RATE * DECAY),
    "adamw": (made("AdamW"), RATE * DECAY),
    "adamw, fused": (made("AdamW", fused=True), RATE * DECAY),
    "adamw, rate in a tensor": (made("AdamW", lr=torch.tensor(RATE)), RATE * DECAY),
    "adamw, tiny rate": (made("AdamW", lr=1e-6), 1e-6 * DECAY),
    "adam, decoupled": (made("Adam", decoupled_weight_decay=True), RATE * DECAY),
    "muon": (made("Muon"), RATE * DECAY),
    "sgd": (made("SGD"), RATE * DECAY),
    "by fraction": (
        own(lambda p, _, group: shrunk(p, 0.01 * group["weight_decay"]), weight_decay=DECAY),
        0.01 * DECAY,
    ),
}
"""Optimizers that shrink the weights, and by what fraction in one update."""

COUPLED = {
    "sgd, momentum": made("SGD", momentum=0.9),
    "adam": made("Adam"),
    "rmsprop, centred": made("RMSprop", momentum=0.5, centered=True),
    "adagrad": made("Adagrad"),
    "nadam": made("NAdam"),
    "radam": made("RAdam"),  # whose first updates look like decoupled decay
    "adamax": made("Adamax"),
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
    options = OptimizerWrapper(make([p := weight()])).options(0)[id(p)]
    assert options.shrink == pytest.approx(shrink, rel=1e-3)
    assert options.coupled == coupled


class Both(torch.optim.Optimizer):
    """Signs for the first group and gradient descent for the second, told apart in the state."""

    def __init__(self):
        groups = [{"params": [weight()], "weight_decay": decay} for decay in (DECAY, DECAY / 2)]
        super().__init__(groups, {"lr": RATE})
        for group, first in zip(self.param_groups, (True, False), strict=True):
            self.state[group["params"][0]]["use_muon"] = first

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["last"] = p.grad.clone()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(p.grad.sign() if self.state[p]["use_muon"] else p.grad, alpha=group["lr"])


def test_decay_is_found_where_one_optimizer_treats_groups_in_different_ways():
    optimizer = Both()
    (first,), (second,) = (group["params"] for group in optimizer.param_groups)
    for p in (first, second):
        p.grad = torch.ones_like(p)
    optimizer.step()
    wrapper = OptimizerWrapper(optimizer)
    assert not any(rule.unknown for rule in wrapper.rules().values())
    shrinks = [wrapper.options(0)[id(p)].shrink for p in (first, second)]
    assert shrinks == pytest.approx([RATE * DECAY, RATE * DECAY / 2])


def test_the_fraction_follows_the_rate():
    optimizer = DECOUPLED["adamw"][0]([p := weight()])
    wrapper = OptimizerWrapper(optimizer)
    for rate in (RATE / 7, 0.0, torch.tensor(RATE)):
        optimizer.param_groups[0]["lr"] = rate
        assert wrapper.options(0)[id(p)].shrink == pytest.approx(float(rate) * DECAY, rel=1e-3)
    rate.mul_(2.0)  # in place, as a scheduler does
    assert wrapper.options(0)[id(p)].shrink == pytest.approx(2 * RATE * DECAY, rel=1e-3)


@pytest.mark.parametrize("name", ["by fraction", "adamw", "sgd, momentum"])
def test_a_schedule_of_the_decay_is_followed(name):
    make, full, is_coupled = WANTED[name]
    optimizer = make([p := weight()])
    wrapper = OptimizerWrapper(optimizer)
    for decay in (0.03, 0.04, 0.0, 2e-5, 0.5):
        optimizer.param_groups[0]["weight_decay"] = decay
        options = wrapper.options(0)[id(p)]
        assert options.shrink == pytest.approx(full * decay / DECAY, rel=1e-3)
        assert options.coupled == pytest.approx(decay if is_coupled else 0.0)


def test_groups_are_tried_once_if_they_have_the_same_numbers_at_first(monkeypatch):
    trials = []
    monkeypatch.setattr(
        "hybrid_predict.optimizers.wrapper.found_rule",
        lambda *given: trials.append(found_rule(*given)) or trials[-1],
    )
    groups = [{"params": [weight()], "weight_decay": decay} for decay in (0.1, 0.2, 0.1)]
    optimizer = own(lambda p, _, group: shrunk(p, group["lr"] * group["weight_decay"]))(groups)
    wrapper = OptimizerWrapper(optimizer)
    for step in range(1, 6):
        for group in optimizer.param_groups:
            group["step"] = step  # some optimizers count there
        wrapper.options()
    assert len(trials) == 2


def test_decoupled_decay_is_found_whatever_its_option_is_called():
    make = own(lambda p, _, group: shrunk(p, group["lr"] * group["reg"]), reg=0.05)
    wrapper = OptimizerWrapper(make([p := weight()]))
    found = wrapper.options(0)[id(p)]
    assert (found.coupled, found.shrink) == pytest.approx((0.0, RATE * 0.05), rel=1e-3)


def adapting(p, state, group):
    """Updates as long as a share of the weights, in groups that ask for it."""
    relative = group["adapt"] or group["mode"] == "relative"
    return p.grad / p.grad.norm() * (p.norm() if relative else 1.0)


def decaying_lars(p, state, group):
    """Follows the size of weights only in groups with weight decay, as LARS and LAMB may."""
    decayed = p.grad + group["weight_decay"] * p
    scale = p.norm() / decayed.norm().clamp(min=1e-9) if group["weight_decay"] else 1.0
    return scale * decayed


def test_groups_with_other_options_flags_or_words_have_their_own_rules():
    several = [{}, {"adapt": True}, {"mode": "relative"}, {"adapt": False}]
    groups = [{"params": [weight()], **options} for options in several]
    wrapper = OptimizerWrapper(own(adapting, adapt=False, mode="plain")(groups))
    assert [rule.relative for rule in wrapper.rules().values()] == [False, True, True, False]


@pytest.mark.parametrize(
    ("make", "relative"),
    [
        (lambda ps: torch.optim.Adafactor(ps, lr=RATE), True),
        (own(decaying_lars, weight_decay=0.05), True),
        (own(decaying_lars, weight_decay=0.0), False),
    ],
)
def test_updates_that_grow_with_the_weights_are_found(make, relative):
    (rule,) = OptimizerWrapper(make([weight()])).rules().values()
    assert rule.relative is relative


def negative(ps, **options):
    optimizer = torch.optim.SGD(ps, **options)
    optimizer.param_groups[0]["lr"] *= -1
    return optimizer


UPHILL = {
    "maximize": lambda ps, **options: torch.optim.SGD(ps, **options, maximize=True),
    "negative rate": negative,
}


@pytest.mark.parametrize("name", UPHILL)
def test_going_up_the_negative_loss_is_going_down_the_loss(name):
    ends = []
    for sign, make in ((1.0, torch.optim.SGD), (-1.0, UPHILL[name])):
        model = net()
        optimizer = make(model.parameters(), lr=3e-2, momentum=0.9)
        changes = {"predictors": {"hidden": MomentumPredictor(gated=False)}, "watch_loss": False}
        engine = run(model, optimizer, 30, True, sign=sign, **changes)
        assert engine.ledger.corrected_steps > 0 and engine.ledger.predicted_steps > 0
        ends.append([p.detach() for p in model.parameters()])
    assert same_bits(*ends)


def test_a_negative_rate_turns_weight_decay_too():
    for make, shrink, coupled in (("AdamW", -RATE * DECAY, 0.0), ("Adam", 0.0, -DECAY)):
        optimizer = made(make)([p := weight()])
        optimizer.param_groups[0]["lr"] = -RATE
        found = OptimizerWrapper(optimizer).options(0)[id(p)]
        assert (found.sign, found.shrink, found.coupled) == pytest.approx((-1.0, shrink, coupled))
