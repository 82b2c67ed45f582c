"""The kinds of parameters as a loss shows them, from the operations that led to it."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from kind_cases import CASES, InKernel, KindCase, frozen, mlp, resolved, rows, square
from torch import nn

from hybrid_predict.model.cost import Watching
from hybrid_predict.model.uses import MatrixUses


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
        if self.how == "cdist":
            far = torch.cdist(x, self.points).square()
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
    **{
        f"inducing points, {how}{', deep' * deep}": (
            lambda how=how, deep=deep: Kernel(how, deep),
            ["inner.weight", *["stem.weight"] * deep],
            [],
        )
        for how, deep in (("cdist", True), ("product", True))
    },
    "weights that data or noise change": (
        Styled,
        ["noisy", "style.weight", "weight"],
        ["weight"],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_only_weights_of_products_are_hidden_matrices(name):
    torch.manual_seed(0)
    build, hidden, unseen = KINDS[name]
    model = build()
    kinds, untold = resolved(model, square)
    assert sorted(n for n, kind in kinds.items() if kind == "hidden") == hidden
    assert [n for n, kind in kinds.items() if kind == "head"] == ["out.weight"]
    assert untold == unseen


class Tied(nn.Module):
    """The decoder uses the encoder's matrices from the other side."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 6)
        self.weights = nn.ParameterList(torch.randn(shape) / 3 for shape in ((6, 8), (8, 4)))

    def forward(self, x):
        x = torch.sin(self.out(x))
        for weight in self.weights:
            x = F.silu(x @ weight)
        for weight in reversed(self.weights):
            x = F.linear(F.silu(x), weight)
        return x


class Quantized(nn.Linear):
    """Rounds its weight, and passes the gradient on as if it did not."""

    def forward(self, x):
        rounded = self.weight + ((4 * self.weight).round() / 4 - self.weight).detach()
        return F.linear(x, rounded, self.bias)


def parts(**children):
    return nn.ModuleDict(children)


def of_parts(net):
    """Written part by part into a tensor, which is then read as a whole."""
    inner = torch.zeros(8, 2, 8)
    inner[:, 0] = net["stem"](rows())
    inner[:, 1] = net["stem"](rows().flip(0))
    return net["net"](inner.tanh()).square().mean()


def of_targets(net):
    """A target from the network's outputs that no gradient goes through."""
    found = net["net"](rows())
    with torch.no_grad():
        target = net["other"](found)
    return (found - target).square().mean()


FURTHER = {
    "tied from the other side": KindCase(Tied, ["weights.0"]),
    "rounded weights": KindCase(
        lambda: nn.Sequential(Quantized(6, 8), nn.Tanh(), Quantized(8, 3)), ["2.weight"]
    ),
    "parts": KindCase(
        lambda: parts(net=mlp(8, 8, 3), stem=nn.Linear(6, 8)), ["net.2.weight"], of_parts
    ),
    "a target without gradient": KindCase(
        lambda: parts(net=mlp(6, 8, 3), other=frozen(nn.Linear(3, 3))), ["net.2.weight"], of_targets
    ),
}


@pytest.mark.parametrize("name", CASES | FURTHER)
def test_the_loss_shows_which_matrices_end_the_network(name):
    torch.manual_seed(0)
    assert_shown((CASES | FURTHER)[name])


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


def laplacian(net):
    x = rows().requires_grad_()
    y = net(x)
    first = slope(y, x)
    second = sum(slope(first[:, k], x)[:, k] for k in range(2))
    return (second + y.sum(1) - 1).square().mean()


def penalty(net):
    """As in WGAN-GP: two values, and the length of a slope elsewhere."""
    x = ((rows() + rows().flip(0)) / 2).requires_grad_()
    lengths = slope(net(x), x).norm(dim=1)
    return net(rows()).mean() + 10 * (lengths - 1).square().mean()


def functional(net):
    """As ``torch.func`` takes derivatives, sample by sample."""
    slopes = torch.func.vmap(torch.func.jacrev(lambda one: net(one[None])[0]))(rows())
    return (slopes - 1).square().mean()


def forward_mode(net):
    x = rows()
    return torch.func.jvp(net, (x,), (torch.ones_like(x),))[1].square().mean()


class Bounded(nn.Module):
    """Layers in the order of their use or not, and an activation after the last one."""

    def __init__(self, first=True):
        super().__init__()
        layers = {"stem": (6, 8), "inner": (8, 8), "out": (8, 2)}
        for name in layers if first else reversed(layers):
            self.add_module(name, nn.Linear(*layers[name]))

    def forward(self, x):
        return self.out(self.inner(self.stem(x).sin()).sin()).tanh()


def convolutions():
    layers = nn.Conv2d(1, 4, 3, 2, 1), nn.SiLU(), nn.Conv2d(4, 4, 3, 2, 1), nn.SiLU(), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, 1, 6)), *layers, nn.Linear(8, 3))


NETS = {
    "bounded": (lambda: Bounded(first=False), "out.weight"),
    "convolutions": (convolutions, "6.weight"),
    "linear": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)),
        "2.weight",
    ),
}


# A linear net has no second derivative.
PAIRS = [("bounded", both), ("convolutions", laplacian), ("linear", penalty)]


@pytest.mark.parametrize(("net", "loss"), PAIRS)
def test_derivatives_of_the_network_do_not_hide_its_head(net, loss):
    torch.manual_seed(0)
    build, head = NETS[net]
    assert_shown(KindCase(build, [head], loss))


# torch.func.jvp scripts a part of itself.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("loss", [functional, forward_mode])
def test_where_the_loss_is_a_derivative_names_and_shapes_tell_the_head(loss):
    torch.manual_seed(0)
    kinds, unseen = resolved(mlp(6, 8, 8, 2)[:-1], loss)
    assert kinds == {"0.weight": "hidden", "2.weight": "hidden", "4.weight": "head"}
    assert "4.weight" in unseen


def test_what_kernels_of_one_s_own_do_is_not_guessed():
    kinds, unseen = resolved(InKernel(), square)
    assert kinds == {"out.weight": "head", "stem.weight": "hidden", "inner": "hidden"}
    assert unseen == ["inner", "stem.weight"]


def test_products_with_sparse_tensors_pass_on_what_is_dense():
    def loss(net):
        inner = torch.sparse.mm(torch.eye(8).to_sparse(), net["stem"](rows()))
        return net["out"](inner.tanh()).square().mean()

    net = parts(out=nn.Linear(8, 3), stem=nn.Linear(6, 8))
    kinds, unseen = resolved(net, loss)
    assert kinds == {"out.weight": "head", "stem.weight": "hidden"}
    assert unseen == []


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
