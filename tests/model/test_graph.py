"""The kinds of parameters as the graph of a loss shows them."""

import pytest
import torch
import torch.nn.functional as F
from graph_cases import CASES, resolved, rows
from torch import nn


class GraphAttention(nn.Module):
    """A layer of GAT (``dynamic`` for GATv2), with attention vectors of shape (1, heads, width)."""

    def __init__(self, dynamic):
        super().__init__()
        self.lin = nn.Linear(6, 8, bias=False)
        self.att_src = nn.Parameter(torch.randn(1, 2, 4))
        self.att_dst = nn.Parameter(torch.randn(1, 2, 4))
        self.out, self.dynamic = nn.Linear(8, 3), dynamic

    def forward(self, x):
        source, target = torch.arange(len(x)).roll(1), torch.arange(len(x))
        x = self.lin(x).view(-1, 2, 4)
        if self.dynamic:
            far = (F.leaky_relu(x[source] + x[target]) * self.att_src).sum(-1)
            far = far + (x[target] * self.att_dst).sum(-1)
        else:
            far = (x * self.att_src).sum(-1)[source] + (x * self.att_dst).sum(-1)[target]
        sent = x[source] * F.leaky_relu(far).exp().unsqueeze(-1)
        return self.out(torch.zeros_like(x).index_add(0, target, sent).flatten(1))


class Kernel(nn.Module):
    """Distances to inducing points, then layers."""

    def __init__(self, how, deep=False):
        super().__init__()
        self.how, self.points = how, nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.ones(1, 6))
        self.stem = nn.Linear(6, 6) if deep else nn.Identity()
        self.inner, self.out = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        if self.how == "plain":
            far = (x[:, None] - self.points).square().sum(-1)
        elif self.how == "cdist":
            far = torch.cdist(x, self.points).square()
        elif self.how == "scaled":
            far = torch.cdist(x / self.scale, self.points / self.scale).square()
        else:  # squares and a product of both with ones, as gpytorch has it
            x, points = x / self.scale, self.points / self.scale
            ones, more = torch.ones(len(x), 1), torch.ones(len(points), 1)
            left = torch.cat([-2 * x, x.square().sum(-1, keepdim=True), ones], -1)
            right = torch.cat([points, more, points.square().sum(-1, keepdim=True)], -1)
            far = left @ right.T
        return self.out(F.silu(self.inner(torch.exp(-far))))


class Styled(nn.Module):
    """The weight of a convolution depends on a style, as in StyleGAN 2; noise is in another."""

    def __init__(self):
        super().__init__()
        self.style, self.weight = nn.Linear(6, 4), nn.Parameter(torch.randn(8, 4, 3))
        self.noisy, self.out = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 3)

    def forward(self, x):
        images = x[:, None].expand(-1, 4, -1)
        weight = self.weight * self.style(x)[:, None, :, None]
        found = F.conv1d(images.reshape(1, -1, 6), weight.view(-1, 4, 3), groups=len(x))
        inner = found.view(len(x), 8, -1).mean(-1)
        return self.out(F.silu(F.linear(inner, self.noisy + 0.1 * torch.ones(8, 8))))


KINDS = {
    "gat": (lambda: GraphAttention(False), ["lin.weight"], []),
    "gat, second version": (lambda: GraphAttention(True), ["lin.weight"], []),
    **{
        f"inducing points, {how}{', deep' * deep}": (
            lambda how=how, deep=deep: Kernel(how, deep),
            ["inner.weight", *["stem.weight"] * deep],
            [],
        )
        for how in ("plain", "cdist", "scaled", "product")
        for deep in (False, True)
    },
    "weights that data or noise change": (
        Styled,
        ["noisy", "style.weight", "weight"],
        ["noisy", "weight"],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_only_weights_of_products_are_hidden_matrices(name):
    torch.manual_seed(0)
    build, hidden, unseen = KINDS[name]
    model = build()
    kinds, untold = resolved(model, model(rows()).square().mean())
    assert sorted(n for n, kind in kinds.items() if kind == "hidden") == hidden
    assert [n for n, kind in kinds.items() if kind == "head"] == ["out.weight"]
    assert untold == unseen


class Remembering(torch.autograd.Function):
    """A function that keeps something under the name that leaves of a graph use."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = x
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_a_function_with_a_variable_of_its_own_hides_no_layer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.out = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.out(Remembering.apply(self.first(x)))

    model = Model()
    _, unseen = resolved(model, model(rows()).square().mean())
    assert unseen == []


@pytest.mark.parametrize("after", [False, True], ids=["before backward", "after it"])
@pytest.mark.parametrize("name", CASES)
def test_the_graph_shows_which_matrices_end_the_network(name, after):
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build()
    kinds, unseen = resolved(model, case.loss(model), after=after)
    for kind in ("head", "embedding"):
        assert sorted(n for n, k in kinds.items() if k == kind) == getattr(case, kind)
    assert unseen == case.unseen
