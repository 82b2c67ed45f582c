"""What the optimizer wrapper refuses, shows, and holds back."""

import pytest
import torch
from loops import Bench, make_config, same_bits
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, OptimizerWrapper
from hybrid_predict.errors import ConfigError, UnsupportedSetupError


def named_optimizer(name):
    return type(name, (torch.optim.SGD,), {})


REFUSED = [
    torch.optim.LBFGS,
    type("Mine", (named_optimizer("SAM"),), {}),
    *map(named_optimizer, ("AdamWScheduleFree", "Lookahead")),
]


@pytest.mark.parametrize("make", REFUSED)
def test_optimizers_that_cannot_be_followed_are_refused(make):
    optimizer = make(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(UnsupportedSetupError, match=r"optimizer: expected .*because it .*use SGD"):
        OptimizerWrapper(optimizer)


def test_every_parameter_has_the_options_of_its_group():
    a, b, c = (nn.Linear(1, 1) for _ in range(3))
    first = torch.optim.SGD(
        [{"params": a.parameters(), "lr": 0.1}, {"params": b.parameters(), "maximize": True}], 0.2
    )
    second = torch.optim.AdamW(c.parameters(), lr=torch.tensor(0.3), weight_decay=0.0)
    wrapper = OptimizerWrapper([first, second])
    assert [id(p) for p in wrapper.parameters(1)] == [id(p) for p in c.parameters()]
    assert len(wrapper.parameters()) == 6
    assert [wrapper.numbers()[id(m.weight)] for m in (a, b, c)] == [0, 0, 1]
    found = [wrapper.options()[id(m.weight)] for m in (a, b, c)]
    assert [o.rate for o in found] == pytest.approx([0.1, 0.2, 0.3])
    assert [o.sign for o in found] == [1.0, -1.0, 1.0]


class Handing(torch.optim.SGD):
    """Hands its steps to other optimizers."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=0.1)
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step(closure)


def test_an_optimizer_that_wraps_another_is_refused_and_nothing_is_updated():
    layer = nn.Linear(2, 2)
    inner = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2)).sum().backward()
    wrapping = Handing(inner)
    before = layer.weight.detach().clone()
    with pytest.raises(UnsupportedSetupError, match="pass the inner optimizer to the engine"):
        OptimizerWrapper(wrapping).options()
    assert torch.equal(layer.weight, before)
    assert not inner.state


def test_an_optimizer_without_a_learning_rate_is_refused():
    class Without(torch.optim.Optimizer):
        def step(self, closure=None):
            pass

    with pytest.raises(UnsupportedSetupError, match=r"expected a learning rate 'lr'.*Set lr to"):
        OptimizerWrapper(Without(nn.Linear(2, 2).parameters(), {"learning_rate": 0.1}))


def closure_of(bench):
    def closure():
        bench.optimizer.zero_grad()
        loss = bench.loss()
        loss.backward()
        return loss

    return closure


def test_a_loop_with_closures_equals_the_loop_without():
    traces = []
    for closed in (False, True):
        bench = Bench(make_config())
        for _ in range(10):
            bench.engine.before_step()
            closure = closure_of(bench)
            loss = None if closed else closure()
            heard = bench.optimizer.step(closure if closed else None)
            bench.taken += 1
            record = bench.engine.after_step(loss)
            assert record.loss == (heard if closed else loss).item()
        traces.append(bench.trace())
    assert same_bits(*traces)


def test_momentum_is_the_most_that_a_scheduler_makes_of_it():
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    optimizer = torch.optim.Adam(parameters, betas=(0.9, 0.999))
    wrapper = OptimizerWrapper(optimizer)
    assert wrapper.momentum(0) == 0.9
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10)
    found = set()
    for _ in range(9):
        optimizer.step()
        scheduler.step()
        found.add(wrapper.momentum(0))
    assert found == {0.95}
    assert OptimizerWrapper(torch.optim.SGD(parameters, lr=0.1)).momentum(0) == 0.0


class Wrapper:
    """A wrapper that is no torch optimizer, as that of fastai."""

    def __init__(self, inner):
        self.opt = inner


ZeroOptimizer = type("Zero", (Wrapper,), {"__module__": "deepspeed.runtime.zero.stage3"})


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (
            Wrapper(torch.optim.SGD([torch.zeros(1)], lr=0.1)),
            "wraps a torch optimizer, pass that one",
        ),
        (ZeroOptimizer(torch.optim.SGD([torch.zeros(1)], lr=0.1)), "divides weights.*fully_shard"),
        (None, r"optimizer: expected a torch\.optim.Optimizer"),
        ([], "a non-empty list"),
    ],
)
def test_what_is_no_torch_optimizer_is_refused_with_the_place_of_one(other, remedy):
    with pytest.raises(ConfigError, match=remedy):
        OptimizerWrapper(other)


class DeepSpeedEngine(nn.Linear):
    """As the engine of DeepSpeed, of which its other engines are subclasses."""


def test_models_of_deepspeed_are_refused_with_the_nearest_that_works():
    net = type("PipelineEngine", (DeepSpeedEngine,), {})(2, 2)
    with pytest.raises(UnsupportedSetupError, match=r"model: .*DistributedData.*fully_shard"):
        HybridEngine(net, torch.optim.SGD(net.parameters(), lr=0.1), HybridConfig(total_steps=9))
