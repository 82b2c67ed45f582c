"""How weights decay is found by a scratch update, and weights decay as in plain training."""

import copy

import pytest
import torch
from loops import same_bits
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, OptimizerWrapper, UnsupportedSetupError
from hybrid_predict.torch.probe import find_rule

RATE, DECAY = 3e-3, 0.1


class Lion(torch.optim.Optimizer):
    """Goes by the sign of an interpolated momentum; decay is decoupled."""

    def __init__(self, params, lr=RATE, weight_decay=DECAY):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                average.lerp_(p.grad, 0.01)


class Mine(torch.optim.Optimizer):
    """AdamW under another name."""

    def __init__(self, params, lr=RATE, weight_decay=DECAY):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                first, second = (state.setdefault(n, torch.zeros_like(p)) for n in ("m", "v"))
                count = state["count"] = state.get("count", 0) + 1
                p.mul_(1 - group["lr"] * group["weight_decay"])
                first.lerp_(p.grad, 0.1)
                second.lerp_(p.grad.square(), 0.001)
                scale = (second / (1 - 0.999**count)).sqrt().add_(1e-8)
                p.addcdiv_(first / (1 - 0.9**count), scale, value=-group["lr"])


class ByFraction(Lion):
    """Takes a fixed fraction off the weights, whatever the learning rate is."""

    def step(self, closure=None):
        shrink = [g["weight_decay"] for g in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] = 0.0
        super().step(closure)
        for group, decay in zip(self.param_groups, shrink, strict=True):
            group["weight_decay"] = decay
            with torch.no_grad():
                for p in group["params"]:
                    if p.grad is not None:
                        p.mul_(1 - 0.01 * decay)


def made(cls, **options):
    return lambda ps: cls(ps, **{"lr": RATE, "weight_decay": DECAY, **options})


DECOUPLED = {
    "lion": (Lion, RATE * DECAY),
    "adamw": (made(torch.optim.AdamW), RATE * DECAY),
    "adamw, fused": (made(torch.optim.AdamW, fused=True), RATE * DECAY),
    "adamw, foreach": (made(torch.optim.AdamW, foreach=True), RATE * DECAY),
    "adamw, rate in a tensor": (
        made(torch.optim.AdamW, lr=torch.tensor(RATE), capturable=False), RATE * DECAY,
    ),
    "adamw under another name": (Mine, RATE * DECAY),
    "adamw, tiny rate": (made(torch.optim.AdamW, lr=1e-6), 1e-6 * DECAY),
    "adam, decoupled": (made(torch.optim.Adam, decoupled_weight_decay=True), RATE * DECAY),
    "muon": (made(torch.optim.Muon), RATE * DECAY),
    "sgd": (made(torch.optim.SGD), RATE * DECAY),
    "by fraction": (ByFraction, 0.01 * DECAY),
}  # fmt: skip
"""Optimizers that shrink the weights, and by what fraction in one update."""

COUPLED = {
    "sgd, momentum": made(torch.optim.SGD, momentum=0.9),
    "adam": made(torch.optim.Adam),
    "rmsprop": made(torch.optim.RMSprop),
    "rmsprop, centred": made(torch.optim.RMSprop, momentum=0.5, centered=True),
    "adagrad": made(torch.optim.Adagrad),
    "nadam": made(torch.optim.NAdam),
    "adamax": made(torch.optim.Adamax),
}
"""Optimizers that add the decay to the gradient."""

NONE = {
    "adamw, no decay": made(torch.optim.AdamW, weight_decay=0.0),
    "sgd, no decay": made(torch.optim.SGD, weight_decay=0.0, momentum=0.9),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=RATE),
}


def options_of(make):
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = make([weight])
    return OptimizerWrapper(optimizer).options(0)[id(weight)]


@pytest.mark.parametrize("name", DECOUPLED)
def test_decoupled_decay_is_found_whatever_the_class_is_called(name):
    make, fraction = DECOUPLED[name]
    found = options_of(make)
    assert (found.shrink, found.coupled) == (pytest.approx(fraction, rel=1e-3), 0.0)


@pytest.mark.parametrize("name", COUPLED)
def test_decay_that_is_added_to_the_gradient_is_no_shrinking(name):
    found = options_of(COUPLED[name])
    assert (found.shrink, found.coupled) == (0.0, DECAY)


@pytest.mark.parametrize("name", NONE)
def test_without_decay_nothing_shrinks(name):
    found = options_of(NONE[name])
    assert (found.shrink, found.coupled) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["adamw", "adamw, rate in a tensor", "lion"])
def test_the_fraction_follows_the_rate(name):
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = DECOUPLED[name][0]([weight])
    wrapper = OptimizerWrapper(optimizer)
    for rate in (RATE, RATE / 7, 0.0):
        optimizer.param_groups[0]["lr"] = rate
        assert wrapper.options(0)[id(weight)].shrink == pytest.approx(rate * DECAY, rel=1e-3)


def test_groups_have_their_own_decay():
    weights = [nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
    groups = [{"params": weights[:1], "weight_decay": 0.0}, {"params": weights[1:]}]
    wrapper = OptimizerWrapper(torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY))
    shrinks = [wrapper.options(0)[id(w)].shrink for w in weights]
    assert shrinks == [0.0, pytest.approx(RATE * DECAY, rel=1e-3)]


@pytest.mark.parametrize("name", [*DECOUPLED, *COUPLED, *NONE])
def test_finding_out_leaves_the_optimizer_alone(name):
    make = {**{k: v for k, (v, _) in DECOUPLED.items()}, **COUPLED, **NONE}[name]
    weight = nn.Parameter(torch.ones(4, 4))
    optimizer = make([weight])
    weight.grad = torch.eye(4)
    optimizer.step()
    before = copy.deepcopy([optimizer.state_dict(), weight.detach(), weight.grad])
    assert find_rule(optimizer, optimizer.param_groups[0]).known
    assert same_bits([optimizer.state_dict(), weight.detach(), weight.grad], before)
    assert list(optimizer.state) == [weight] or not optimizer.state


@pytest.mark.parametrize("name", [*DECOUPLED, *COUPLED, "rprop"])
def test_a_schedule_of_the_decay_needs_no_more_than_one_search(name, monkeypatch):
    makers = {**{k: v for k, (v, _) in DECOUPLED.items()}, **COUPLED, **NONE}
    optimizer = makers[name]([weight := nn.Parameter(torch.ones(4, 4))])
    optimizer.param_groups[0]["weight_decay"] = 0.03
    wrapper, found = OptimizerWrapper(optimizer), []
    monkeypatch.setattr(
        "hybrid_predict.torch.optimizer.find_rule",
        lambda *a: found.append(find_rule(*a)) or found[-1],
    )
    for decay in (0.03, 0.04, 0.0, 2e-5, 0.5):
        optimizer.param_groups[0]["weight_decay"] = decay
        options = wrapper.options(0)[id(weight)]
        shrink = DECOUPLED[name][1] * decay / DECAY if name in DECOUPLED else 0.0
        assert options.shrink == pytest.approx(shrink, rel=1e-3)
        assert options.coupled == pytest.approx(decay if name in COUPLED else 0.0)
    assert len(found) == 2  # with decay and without


class Squared(Lion):
    """Goes by the square of its decay option."""

    def step(self, closure=None):
        options = [g["weight_decay"] for g in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] **= 2
        super().step(closure)
        for group, decay in zip(self.param_groups, options, strict=True):
            group["weight_decay"] = decay


def test_a_decay_that_is_not_in_proportion_is_searched_anew_and_little_is_kept(monkeypatch):
    monkeypatch.setattr("hybrid_predict.torch.optimizer._MOST_RULES", 3)
    optimizer = Squared([weight := nn.Parameter(torch.ones(4, 4))])
    wrapper = OptimizerWrapper(optimizer)
    for decay in (0.1, 0.2, 0.3, 0.4, 0.5, 0.1):
        optimizer.param_groups[0]["weight_decay"] = decay
        shrink = wrapper.options(0)[id(weight)].shrink
        assert shrink == pytest.approx(RATE * decay**2, rel=1e-3)
    assert len(wrapper._rules) == 3


class Adapting(torch.optim.Optimizer):
    """Updates as long as a share of the weights, in groups that ask for it in either way."""

    def __init__(self, params, lr=RATE):
        super().__init__(params, {"lr": lr, "adapt": False, "mode": "plain"})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    relative = group["adapt"] or group["mode"] == "relative"
                    scale = p.norm() if relative else 1.0
                    p.sub_(group["lr"] * scale * p.grad / p.grad.norm())


def test_groups_with_other_flags_or_words_have_their_own_rules():
    several = [{}, {"adapt": True}, {"mode": "relative"}, {"adapt": False}]
    groups = [{"params": [nn.Parameter(torch.ones(4, 4))], **options} for options in several]
    wrapper = OptimizerWrapper(Adapting(groups))
    found = [rule.relative for rule in wrapper.rules().values()]
    assert found == [False, True, True, False]


class Noisy(torch.optim.SGD):
    """Adds noise of generators of its own."""

    def __init__(self, params):
        super().__init__(params, lr=RATE)
        self.noise = torch.Generator().manual_seed(1)
        self.param_groups[0]["noise"] = torch.Generator().manual_seed(2)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                for noise in (self.noise, group["noise"]):
                    p.add_(torch.randn(p.shape, generator=noise, dtype=p.dtype), alpha=1e-9)
        return super().step(closure)


def test_finding_out_draws_nothing_from_the_optimizer_s_generators():
    optimizer = Noisy([nn.Parameter(torch.ones(4, 4))])
    noises = optimizer.noise, optimizer.param_groups[0]["noise"]
    before = [noise.get_state() for noise in noises]
    find_rule(optimizer, optimizer.param_groups[0])
    assert same_bits([noise.get_state() for noise in noises], before)


def adafactor(ps):
    return torch.optim.Adafactor(ps, lr=RATE)


class DecayingLars(torch.optim.SGD):
    """Follows the size of weights only in groups with weight decay, as LARS and LAMB may."""

    def __init__(self, params, **kwargs):
        super().__init__(params, lr=RATE, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and group["weight_decay"]:
                    decayed = p.grad + group["weight_decay"] * p
                    p.grad *= p.norm() / decayed.norm().clamp(min=1e-9)
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "options", "relative"),
    [
        (adafactor, {}, True),
        (DecayingLars, {"weight_decay": 0.05}, True),
        (DecayingLars, {}, False),
        (torch.optim.SGD, {"weight_decay": 5.0}, False),
        (torch.optim.AdamW, {"weight_decay": 5.0}, False),
    ],
)
def test_updates_that_grow_with_the_weights_are_found(make, options, relative):
    optimizer = make([nn.Parameter(torch.ones(4, 4))], **options)
    assert find_rule(optimizer, optimizer.param_groups[0]).relative is relative


class Odd(torch.optim.SGD):
    """Cannot update a parameter that it was not made for."""

    def __init__(self, params):
        super().__init__(params, lr=RATE)
        self.known = {id(p) for group in self.param_groups for p in group["params"]}

    def step(self, closure=None):
        if any(id(p) not in self.known for group in self.param_groups for p in group["params"]):
            raise KeyError("not mine")
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(adafactor, "updates grow with the weights"), (Odd, "decay could not be found out")],
    ids=["relative", "unknown"],
)
def test_matrices_of_other_optimizers_are_left_alone_and_it_is_said(make, reason, caplog):
    traces = []
    for plugged in (False, True):
        model, optimizer = net(), None
        optimizer = make(list(model.parameters()))
        run(model, optimizer, plugged, 20, speedup=1)
        traces.append([p.detach() for p in model.parameters()])
    assert same_bits(*traces)
    assert reason in caplog.text


def net():
    torch.manual_seed(0)
    layers = nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(24, 1))


def batch(k):
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(k))
    return x, x.prod(1, keepdim=True).tanh()


def run(model, optimizer, plugged, steps, **changes):
    engine = None
    if plugged:
        engine = HybridEngine(model, optimizer, HybridConfig(total_steps=2 * steps, **changes))
    losses = []
    for k in range(steps):
        if engine:
            engine.before_step()
        x, y = batch(k)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if engine:
            engine.after_step(loss)
        losses.append(loss.item())
    return losses


STRONG = {name: DECOUPLED[name][0] for name in ("lion", "adamw under another name", "sgd")}


@pytest.mark.parametrize("name", STRONG)
def test_weights_shrink_as_in_plain_training(name):
    """A gradient that is all but zero leaves the decay alone."""
    norms = []
    for plugged in (False, True):
        model = net()
        optimizer = STRONG[name](list(model.parameters()))
        for group in optimizer.param_groups:
            group.update(lr=5e-3 if name == "sgd" else 1e-3, weight_decay=2.0)
        engine = HybridEngine(model, optimizer, HybridConfig(total_steps=400)) if plugged else None
        for k in range(60):
            if engine:
                engine.before_step()
            for p in model.parameters():
                noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(k))
                p.grad = 1e-6 * noise
            optimizer.step()
            if engine:
                engine.after_step()
        norms.append([model[k].weight.norm().item() for k in (2, 4)])
    for plain, hybrid in zip(*norms, strict=True):
        assert 0.75 * plain < hybrid < 1.15 * plain


class Slow(torch.optim.SGD):
    """Keeps slow weights, and returns to them every few updates."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                slow = state.setdefault("slow_buffer", p.clone())
                state["count"] = state.get("count", 0) + 1
                if state["count"] % 5 == 0:
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)


def test_an_optimizer_with_a_second_copy_of_the_weights_is_refused_with_the_remedy():
    model = net()
    optimizer = Slow(model.parameters(), lr=RATE)
    with pytest.raises(UnsupportedSetupError, match=r"second copy .*; use SGD, Adam"):
        HybridEngine(model, optimizer, HybridConfig(total_steps=9))
