"""The kinds of parameters as a loss shows them, from the operations that led to it."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from kind_cases import CASES, KindCase, mlp, resolved, rows, square
from torch import nn

from hybrid_predict.model.cost import Watching
from hybrid_predict.model.uses import MatrixUses


class Kernel(nn.Module):
    """Distances to inducing points, then layers."""

    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.ones(1, 6))
        self.stem = nn.Linear(6, 6)
        self.inner = nn.Linear(5, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        """Squares and a product of both with ones, as gpytorch has it."""
        x = self.stem(x) / self.scale
        points = self.points / self.scale
        ones = torch.ones(len(x), 1)
        more = torch.ones(len(points), 1)
        left = torch.cat([-2 * x, x.square().sum(-1, keepdim=True), ones], -1)
        right = torch.cat([points, more, points.square().sum(-1, keepdim=True)], -1)
        return self.out(F.silu(self.inner(torch.exp(-(left @ right.T)))))


def test_only_weights_of_products_are_hidden_matrices():
    torch.manual_seed(0)
    kinds, untold = resolved(Kernel(), square)
    assert sorted(n for n, kind in kinds.items() if kind == "hidden") == [
        "inner.weight",
        "stem.weight",
    ]
    assert [n for n, kind in kinds.items() if kind == "head"] == ["out.weight"]
    assert untold == []


@pytest.mark.parametrize("name", CASES)
def test_the_loss_shows_which_matrices_end_the_network(name):
    torch.manual_seed(0)
    assert_shown(CASES[name])


def test_the_loss_may_be_shown_before_its_backward_pass():
    assert_shown(CASES["normed weights"], after=False)


def assert_shown(case, after=True):
    kinds, unseen = resolved(case.build(), case.loss, after=after)
    for kind in ("head", "embedding"):
        assert sorted(n for n, k in kinds.items() if k == kind) == getattr(case, kind)
    assert unseen == []


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def both(net):
    """Values and derivatives, as energies and forces."""
    x = rows().requires_grad_()
    y = net(x)
    return y.square().mean() + (slope(y, x) - 1).square().mean()


def functional(net):
    """As ``torch.func`` takes derivatives, sample by sample."""
    slopes = torch.func.vmap(torch.func.jacrev(lambda one: net(one[None])[0]))(rows())
    return (slopes - 1).square().mean()


class Bounded(nn.Module):
    """Layers that are not in the order of their use, and an activation after the last one."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 2)
        self.inner = nn.Linear(8, 8)
        self.stem = nn.Linear(6, 8)

    def forward(self, x):
        return self.out(self.inner(self.stem(x).sin()).sin()).tanh()


def test_derivatives_of_the_network_do_not_hide_its_head():
    torch.manual_seed(0)
    assert_shown(KindCase(Bounded, ["out.weight"], both))


def test_where_the_loss_is_a_derivative_names_and_shapes_tell_the_head():
    torch.manual_seed(0)
    kinds, unseen = resolved(mlp(6, 8, 8, 2)[:-1], functional)
    assert kinds == {"0.weight": "hidden", "2.weight": "hidden", "4.weight": "head"}
    assert "4.weight" in unseen


def test_tensors_are_freed_as_without_it():
    net, kept = mlp(6, 8, 3), []
    uses = MatrixUses(net)
    with Watching(uses.see):
        inner = net[0](rows())
        kept = [weakref.ref(inner), weakref.ref(inner.untyped_storage())]
        net[2](inner).sum().backward()
        del inner
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
