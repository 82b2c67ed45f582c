"""Which updates scratch updates explain, and that all others stay the optimizer's own."""

import pytest
import torch
from loops import same_bits
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor, OptimizerWrapper
from hybrid_predict.torch.probe import find_rule

RATE = 1e-2


class Own(torch.optim.Optimizer):
    """Gradient descent with whatever its options add to the gradient, or take off the weights."""

    def __init__(self, params, lr=RATE, adam=False, **options):
        super().__init__(params, {"lr": lr, "adam": adam, **options})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    gradient = self.descended(p, state, group)
                    if group["adam"]:
                        gradient = self.scaled(gradient, state)
                    p.sub_(gradient, alpha=group["lr"])
                    self.finish(p, state, group)

    def scaled(self, gradient, state):
        first, second = (state.setdefault(k, torch.zeros_like(gradient)) for k in ("m", "v"))
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        unbiased = first / (1 - 0.9 ** state["count"])
        return unbiased / ((second / (1 - 0.999 ** state["count"])).sqrt() + 1e-8)

    def descended(self, p, state, group):
        return p.grad.clone()

    def finish(self, p, state, group):
        pass


class Anchored(Own):
    """L2-SP: decays towards where the weights were at first."""

    def descended(self, p, state, group):
        anchor = state.setdefault("anchor", p.clone())
        return p.grad + group["mu"] * (p - anchor)


class Elastic(Own):
    """EASGD: now and then, weights and a centre pull each other."""

    def finish(self, p, state, group):
        centre = state.setdefault("centre", p.clone())
        if state["count"] % 8 == 0:
            off = 0.05 * (p - centre)
            p.sub_(off)
            centre.add_(off)


class Proximal(Own):
    """A proximal step towards where the weights were at first, beside decoupled decay."""

    def descended(self, p, state, group):
        state.setdefault("anchor", p.clone())
        p.mul_(1 - group["lr"] * group["weight_decay"])
        return p.grad

    def finish(self, p, state, group):
        p.lerp_(state["anchor"], group["lr"] * group["mu"])


class Following(Own):
    """Adds a multiple of where the weights were one update ago."""

    def descended(self, p, state, group):
        last, state["last"] = state.get("last", p.clone()), p.clone()
        return p.grad + 0.1 * (p - last)


PULLS = {
    "to the start": lambda ps: Anchored(ps, mu=0.1),
    "to the start, weak": lambda ps: Anchored(ps, mu=1e-4),
    "to the start, Adam": lambda ps: Anchored(ps, mu=0.1, adam=True),
    "to a centre, now and then": lambda ps: Elastic(ps),
    "proximal": lambda ps: Proximal(ps, mu=1.0, weight_decay=0.0),
    "proximal, with decay": lambda ps: Proximal(ps, mu=0.1, weight_decay=0.1),
    "from the last weights": lambda ps: Following(ps),
}


class Still(Own):
    """Begins to move later than a scratch parameter is watched."""

    def descended(self, p, state, group):
        return p.grad * (state["count"] > 100)


class Lasso(Own):
    """Decays every weight by as much."""

    def descended(self, p, state, group):
        return p.grad + 0.1 * p.sign()


class ByRate(Own):
    """Couples decay in proportion to the rate."""

    def descended(self, p, state, group):
        return p.grad + group["lr"] * p


class Wandering(Own):
    """Adds noise."""

    def finish(self, p, state, group):
        p.add_(torch.randn_like(p), alpha=1e-3)


OTHERS = {
    "never seen to move": (lambda ps: Still(ps), "along or against the gradient"),
    "lasso": (lambda ps: Lasso(ps), "decay could not be found out"),
    "decay by the square of the rate": (
        lambda ps: ByRate(ps, adam=True), "decay could not be found out",
    ),
    "noise": (lambda ps: Wandering(ps), "decay could not be found out"),
}  # fmt: skip

UNEXPLAINED = {**{name: (make, "stored point") for name, make in PULLS.items()}, **OTHERS}


def rule_of(make):
    optimizer = make([nn.Parameter(torch.ones(4, 4))])
    return find_rule(optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_what_gradient_and_decay_do_not_explain_is_not_known(name):
    make, reason = UNEXPLAINED[name]
    rule = rule_of(make)
    assert not rule.known
    assert reason in rule.unknown


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_matrices_of_such_an_optimizer_are_not_corrected_and_it_is_said(name):
    make, reason = UNEXPLAINED[name]
    ends = []
    for plugged in (False, True):
        model = net()
        torch.manual_seed(1)
        engine = run(model, make(list(model.parameters())), 20, plugged, speedup=1)
        ends.append([p.detach() for p in model.parameters()])
    assert same_bits(*ends)
    assert engine.ledger.corrected_steps == 0
    assert [reason in event["reason"] for event in engine.ledger.events] == [True]


def test_a_pull_keeps_the_weights_where_it_keeps_them_in_plain_training():
    distances = []
    for plugged in (False, True):
        model = net()
        before = model[2].weight.detach().clone()
        optimizer = Anchored(model.parameters(), lr=3e-2, mu=5.0)
        predictors = {"hidden": MomentumPredictor(gated=False)}
        run(model, optimizer, 120, plugged, speedup=1.5, predictors=predictors)
        distances.append((model[2].weight.detach() - before).norm().item())
    plain, ours = distances
    assert ours < 4 * plain


class Coupled(Own):
    """Adds a multiple of the weights to the gradient, by options of its own."""

    def descended(self, p, state, group):
        return p.grad + self.multiple(group) * p

    def multiple(self, group):
        return group["l2"]


class Product(Coupled):
    def multiple(self, group):
        return 2.0 * group["l2"] * group["strength"]


class Constant(Coupled):
    def multiple(self, group):
        return 0.05


class Decoupled(Own):
    def descended(self, p, state, group):
        p.mul_(1 - group["lr"] * group["reg"])
        return p.grad


DECAYS = {
    "coupled": (lambda ps: Coupled(ps, l2=0.05), {"l2": 0.02}, 0.0),
    "coupled, Adam": (lambda ps: Coupled(ps, l2=0.05, adam=True), {"l2": 0.02}, 0.02),
    "coupled, Adam, two options": (
        lambda ps: Product(ps, l2=0.1, strength=0.25, adam=True),
        {"l2": 0.2, "strength": 0.05},
        0.02,
    ),
    "coupled, Adam, no option": (lambda ps: Constant(ps, adam=True), {}, 0.05),
    "decoupled": (lambda ps: Decoupled(ps, reg=0.05), {"reg": 0.02}, 0.0),
}


@pytest.mark.parametrize("name", DECAYS)
def test_decay_is_found_and_followed_whatever_its_option_is_called(name):
    make, changes, coupled = DECAYS[name]
    optimizer = make([p := nn.Parameter(torch.ones(4, 4))])
    wrapper = OptimizerWrapper(optimizer)
    found = wrapper.options(0)[id(p)]
    assert (found.coupled, found.shrink) == pytest.approx(
        (0.05, 0.0) if coupled else (0.0, RATE * 0.05), rel=1e-3
    )
    optimizer.param_groups[0].update(changes)
    found = wrapper.options(0)[id(p)]
    assert (found.coupled, found.shrink) == pytest.approx(
        (coupled, 0.0) if coupled else (0.0, RATE * 0.02), rel=1e-3
    )
    assert wrapper.rules()[id(p)].known


def test_coupled_decay_of_any_name_has_the_numbers_of_torch_s_own():
    ends = []
    for make in (
        lambda ps: torch.optim.SGD(ps, lr=RATE, momentum=0.9, weight_decay=0.2),
        lambda ps: Renamed(ps, lr=RATE, momentum=0.9, l2=0.2),
    ):
        model = net()
        run(model, make(model.parameters()), 40, True, speedup=1)
        ends.append([p.detach() for p in model.parameters()])
    assert same_bits(*ends)


class Renamed(torch.optim.SGD):
    """SGD whose decay has another name."""

    def __init__(self, params, l2, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            group["l2"] = l2

    def step(self, closure=None):
        for group in self.param_groups:
            group["weight_decay"] = group["l2"]
        try:
            return super().step(closure)
        finally:
            for group in self.param_groups:
                group["weight_decay"] = 0


def test_decay_that_looks_decoupled_in_the_first_updates_only_is_coupled():
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.RAdam([weight], lr=RATE, weight_decay=0.1)
    found = OptimizerWrapper(optimizer).options(0)[id(weight)]
    assert (found.shrink, found.coupled) == (0.0, 0.1)


def test_an_option_that_makes_updates_unexplained_in_mid_run_ends_corrections():
    model = net()
    optimizer = Anchored(model.parameters(), mu=0.0)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=40, speedup=1))
    for k in range(40):
        optimizer.param_groups[0]["mu"] = 5.0 * (k >= 20)
        train_step(model, optimizer, k, engine)
    assert engine.ledger.corrected_steps == 20
    assert any("stored point" in event["reason"] for event in engine.ledger.events)


class Ascent(torch.optim.SGD):
    """Goes along the gradient, and does not say so."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.neg_()
        return super().step(closure)


def negative(ps, **options):
    optimizer = torch.optim.SGD(ps, **options)
    optimizer.param_groups[0]["lr"] *= -1
    return optimizer


UPHILL = {
    "maximize": lambda ps, **options: torch.optim.SGD(ps, **options, maximize=True),
    "negative rate": negative,
    "its own way": Ascent,
}


@pytest.mark.parametrize("predicts", [False, True], ids=["corrected", "corrected and predicted"])
@pytest.mark.parametrize("name", UPHILL)
def test_going_up_the_negative_loss_is_going_down_the_loss(name, predicts):
    ends = []
    for sign, make in ((1.0, torch.optim.SGD), (-1.0, UPHILL[name])):
        model = net()
        optimizer = make(model.parameters(), lr=3e-2, momentum=0.9)
        speedup = 1.5 if predicts else 1
        predictors = {"hidden": MomentumPredictor(gated=False)}
        changes = {"speedup": speedup, "predictors": predictors, "watch_loss": False}
        engine = run(model, optimizer, 60, True, sign=sign, **changes)
        assert engine.ledger.corrected_steps > 0
        assert (engine.ledger.predicted_steps > 0) == predicts
        ends.append([p.detach() for p in model.parameters()])
    assert same_bits(*ends)


def test_a_negative_rate_turns_weight_decay_too():
    weight = nn.Parameter(torch.ones(4, 4))
    for make, shrink, coupled in (
        (torch.optim.AdamW, -RATE * 0.1, 0.0),
        (torch.optim.Adam, 0.0, -0.1),
    ):
        optimizer = make([weight], lr=RATE, weight_decay=0.1)
        optimizer.param_groups[0]["lr"] = -RATE
        found = OptimizerWrapper(optimizer).options(0)[id(weight)]
        assert (found.sign, found.shrink, found.coupled) == pytest.approx((-1.0, shrink, coupled))


def net():
    torch.manual_seed(0)
    layers = nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(24, 1))


def train_step(model, optimizer, k, engine, sign=1.0):
    if engine:
        engine.before_step()
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(k))
    loss = sign * (model(x) - x.prod(1, keepdim=True).tanh()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if engine:
        engine.after_step(loss)


def run(model, optimizer, steps, plugged, sign=1.0, **changes):
    """Train for some steps, and return the engine."""
    engine = None
    if plugged:
        config = HybridConfig(total_steps=steps, max_overhead=1e9, **changes)
        engine = HybridEngine(model, optimizer, config)
    for k in range(steps):
        if engine and engine.done:
            break
        train_step(model, optimizer, k, engine, sign)
    return engine
