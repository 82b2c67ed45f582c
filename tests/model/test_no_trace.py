"""Trials of an optimizer leave no trace, in it or anywhere else."""

import random
from collections import defaultdict, deque

import numpy as np
import torch
from loops import same_bits
from torch import nn

from hybrid_predict import OptimizerWrapper

RATE = 1e-2


class Busy(torch.optim.SGD):
    """Changes whatever an optimizer may hold, and draws from every generator."""

    def __init__(self, params):
        super().__init__(params, lr=RATE)
        self.count, self.seen, self.ring = 0, deque(maxlen=100), torch.zeros(100)
        self.own, self.array = np.random.default_rng(0), np.zeros(3)
        self.nested = {"a": [{"count": 0}]}
        self.same = self.nested["a"][0]
        self.moments = defaultdict(dict)
        self.parameters = [p for group in self.param_groups for p in group["params"]]
        self.param_groups[0]["helper"] = self.warmup  # leads back to the optimizer

    def warmup(self):
        self.count += 1
        self.seen.append(self.param_groups[0]["lr"])
        return min(1.0, self.count / 40)

    @torch.no_grad()
    def step(self, closure=None):
        self.ring[0] += 1
        self.array[0] += 1
        self.nested["a"][0]["count"] += 1
        assert self.same is self.nested["a"][0]
        for p in self.parameters:
            if p.grad is not None:
                factor = self.param_groups[0]["helper"]() * (1.0 + 1e-3 * noise(self.own))
                self.moments[p]["count"] = self.moments[p].get("count", 0) + 1
                p.sub_(p.grad, alpha=RATE * factor)

    def trace(self):
        return [
            self.count, list(self.seen), self.ring, self.nested,
            self.own.bit_generator.state["state"]["state"], self.array.tolist(),
            [self.moments[p] for p in self.parameters], [p.detach() for p in self.parameters],
        ]  # fmt: skip


def noise(own):
    draws = random.random(), np.random.rand(), own.random(), torch.rand(()).item()
    return sum(draws) / len(draws)


def generators():
    _, state, gauss = random.getstate()
    keys = np.random.get_state(legacy=True)[1]
    return [list(state), gauss, keys.tolist(), torch.get_rng_state()]


def busy():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 4)) for _ in range(3)]
    optimizer = Busy(parameters)
    for p in parameters:
        p.grad = torch.ones(4, 4)
    optimizer.step()
    return optimizer


def test_nothing_that_an_optimizer_holds_or_draws_from_has_changed():
    optimizer = busy()
    random.seed(1)
    before = torch.utils._pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, [optimizer.trace(), generators()]
    )
    gradients = [p.grad.clone() for p in optimizer.parameters]
    OptimizerWrapper(optimizer).rules()
    assert same_bits([optimizer.trace(), generators()], before)
    assert same_bits([p.grad for p in optimizer.parameters], gradients)


def test_an_optimizer_that_cannot_be_copied_is_not_tried_and_it_is_said(tmp_path):
    class Holding(torch.optim.SGD):
        def step(self, closure=None):
            self.steps += 1
            self.tried.append(1)
            return super().step(closure)

    optimizer = Holding([p := nn.Parameter(torch.ones(4, 4))], lr=RATE)
    optimizer.steps, optimizer.tried = 0, []
    with (tmp_path / "log.txt").open("w") as optimizer.held:
        rule = OptimizerWrapper(optimizer).rules()[id(p)]
    assert not optimizer.tried
    assert "could not be found out with a copy of it" in rule.unknown
