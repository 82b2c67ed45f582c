"""Kinds where the loss holds a derivative of the network."""

import pytest
import torch
import torch.nn.functional as F
from graph_cases import Multiplied, mlp, resolved, rows, square
from torch import nn

# torch.func.jvp scripts a part of itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


class Cubed(torch.autograd.Function):
    """A function of one's own that can be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient * ctx.saved_tensors[0].square()


ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "leaky relu": F.leaky_relu,
    "silu": F.silu,
    "square": torch.square,
    "x sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "of one's own": Cubed.apply,
    "relu of plain operations": lambda x: x.clamp(min=0),
    "leaky relu of plain operations": lambda x: torch.where(x > 0, x, x / 10),
}
PLAIN = ("relu of plain operations", "leaky relu of plain operations")
"""Their derivatives do not depend on the inputs, so the network's value has to be in the loss."""
SMOOTH = sorted(ACTIVATIONS.keys() - {"relu", "leaky relu", *PLAIN})


class Net(nn.Module):
    """Three layers, the head registered first."""

    def __init__(self, act=torch.sin, outputs=2):
        super().__init__()
        self.act = act
        self.head, self.inner = nn.Linear(8, outputs), nn.Linear(8, 8)
        self.stem = nn.Linear(6, 8)

    def forward(self, x):
        return self.head(self.act(self.inner(self.act(self.stem(x)))))


class Bare(nn.Module):
    """Matrices without modules, of shape (inputs, outputs), some of them in a function."""

    def __init__(self, how="plain"):
        super().__init__()
        shapes = {"head": (8, 2), "inner": (8, 8), "stem": (6, 8)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / 3))
        self.how = how

    def product(self, x, weight):
        if self.how == "function":
            return Multiplied.apply(x, weight)
        if self.how == "left":
            return (weight.T @ x.T).T
        return torch.einsum("bi,io->bo", x, weight) if self.how == "einsum" else x @ weight

    def forward(self, x):
        hidden = torch.sin(self.product(torch.sin(self.product(x, self.stem)), self.inner))
        return self.product(hidden, self.head)


class Linked(Net):
    """Layers that follow each other directly, that are gated, or that are skipped."""

    def __init__(self, how):
        super().__init__()
        self.how, self.gate, self.first = how, nn.Linear(6, 8), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        if self.how == "direct":
            return super().forward(self.first(x))
        hidden = self.stem(self.first(x).sin()) * self.gate(x)
        if self.how == "skipped":
            hidden = self.norm(hidden + self.inner(F.silu(hidden)))
            return self.head(hidden)
        return self.head(F.silu(self.inner(hidden)))


class Critic(nn.Module):
    """Convolutions, then a linear layer."""

    def __init__(self, act=F.silu):
        super().__init__()
        self.act, self.head = act, nn.Linear(16, 3)
        self.inner, self.stem = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(1, 4, 3, 2, 1)

    def forward(self, x):
        images = F.pad(x[:, None, None], (1, 1, 2, 4))
        return self.head(self.act(self.inner(self.act(self.stem(images)))).flatten(1))


class Atoms(nn.Module):
    """Messages between atoms, weighted by filters of their distances, as in SchNet."""

    def __init__(self):
        super().__init__()
        self.energy, self.update = nn.Linear(8, 2), nn.Linear(8, 8)
        self.message, self.kind = nn.Linear(8, 8), nn.Linear(3, 8)
        self.mixed, self.filter = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x):
        places = x.reshape(-1, 3)
        far = (places[:, None] - places[None]).square().sum(-1)
        basis = torch.exp(-(far[..., None] - torch.arange(4.0)).square())
        atoms = self.kind(F.one_hot(torch.arange(len(places)) % 3, 3).float())
        filters = self.mixed(F.silu(self.filter(basis)))
        atoms = atoms + F.silu(self.update((filters * self.message(atoms)[None]).sum(1)))
        return self.energy(atoms)


NETS = {
    "modules": (Net, ["head.weight"]),
    "bare": (Bare, ["head"]),
    "weights on the left": (lambda: Bare("left"), ["head"]),
    "functions in place of layers": (lambda: Bare("function"), ["head"]),
    "einsum": (lambda: Bare("einsum"), ["head"]),
    "direct": (lambda: Linked("direct"), ["head.weight"]),
    "gated": (lambda: Linked("gated"), ["head.weight"]),
    "skipped": (lambda: Linked("skipped"), ["head.weight"]),
    "convolutions": (Critic, ["head.weight"]),
    "atoms": (Atoms, ["energy.weight"]),
}


def slope(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def both(net):
    """Values and derivatives, as energies and forces."""
    x = rows().requires_grad_()
    y = net(x)
    return y.square().mean() + (slope(y, x) - 1).square().mean()


def alone(net):
    x = rows().requires_grad_()
    return (slope(net(x), x) - 1).square().mean()


def laplacian(net, value=True):
    x = rows().requires_grad_()
    y = net(x)
    first = slope(y, x)
    second = sum(slope(first[:, k], x)[:, k] for k in range(2))
    return (second + (y.sum(1) if value else 0.0) - 1).square().mean()


def residual(net):
    return laplacian(net, value=False)


def of_length(net):
    """A derivative of the length of a derivative."""
    x = rows().requires_grad_()
    return slope(slope(net(x), x).square(), x).square().mean()


def penalty(net):
    """As in WGAN-GP: two values, and the length of a slope elsewhere."""
    real, made = rows(), rows().flip(0)
    x = ((real + made) / 2).requires_grad_()
    lengths = slope(net(x), x).norm(dim=1)
    return net(made).mean() - net(real).mean() + 10 * (lengths - 1).square().mean()


def functional(net):
    """As ``torch.func`` takes derivatives, sample by sample."""
    slopes = torch.func.vmap(torch.func.jacrev(lambda one: net(one[None])[0]))(rows())
    return (slopes - 1).square().mean()


def forward_mode(net):
    x = rows()
    return torch.func.jvp(net, (x,), (torch.ones_like(x),))[1].square().mean()


LOSSES = {
    "both": both,
    "alone": alone,
    "laplacian": laplacian,
    "residual": residual,
    "of length": of_length,
    "penalty": penalty,
    "functional": functional,
    "forward mode": forward_mode,
}
SECOND = ("laplacian", "residual", "of length")
"""Losses with second derivatives, which activations of straight pieces do not have."""


FUNCTIONAL = {"functional", "forward mode"}
BY_ACTIVATION = [
    (act, loss)
    for act in ACTIVATIONS
    for loss in LOSSES
    if (act in SMOOTH or loss not in SECOND)
    and not (act == "of one's own" and loss in FUNCTIONAL)
    and not (act in PLAIN and loss in ("alone", *FUNCTIONAL))
]
BY_NET = [
    (net, loss)
    for net in NETS
    for loss in LOSSES
    if not (net == "functions in place of layers" and loss in FUNCTIONAL)
    and not (net == "atoms" and loss == "laplacian")  # a value for every atom
    and not (net == "einsum" and loss == "functional")  # its reshapes hide the axes
]


def found(model, loss):
    kinds, unseen = resolved(model, loss(model), after=False)
    return [name for name, kind in kinds.items() if kind == "head"], unseen


@pytest.mark.parametrize(("act", "loss"), BY_ACTIVATION)
def test_the_head_is_the_last_matrix_whatever_the_activation(act, loss):
    torch.manual_seed(0)
    assert found(Net(ACTIVATIONS[act]), LOSSES[loss]) == (["head.weight"], [])


@pytest.mark.parametrize(("net", "loss"), BY_NET)
def test_the_head_is_the_last_matrix_whatever_the_layers(net, loss):
    torch.manual_seed(0)
    build, head = NETS[net]
    assert found(build(), LOSSES[loss]) == (head, [])


class Tied(nn.Module):
    """The decoder uses the encoder's matrices, as they are or from the other side."""

    def __init__(self, layers, turn):
        super().__init__()
        shapes = [(6, 8), (8, 4)][:layers]
        self.out = nn.Linear(6, 6)
        self.weights = nn.ParameterList(torch.randn(shape) / 3 for shape in shapes)
        self.turn = turn

    def forward(self, x):
        x = torch.sin(self.out(x))
        for weight in self.weights:
            x = F.silu(x @ weight if self.turn else F.linear(x, weight.T))
        for weight in reversed(self.weights):
            x = F.linear(F.silu(x), weight)
        return x


class Memory(nn.Module):
    """Keys that are values too, then a head or not."""

    def __init__(self):
        super().__init__()
        self.memory, self.query = nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 6)

    def forward(self, x):
        return (self.query(x) @ self.memory.T).softmax(-1) @ self.memory


class Iterated(nn.Module):
    """The same layer again and again."""

    def __init__(self):
        super().__init__()
        self.again, self.stem = nn.Linear(8, 8), nn.Linear(6, 8)

    def forward(self, x):
        given = state = self.stem(x)
        for _ in range(3):
            state = F.silu(self.again(state) + given)
        return state


FORWARD = {
    "tied, one layer": (lambda: Tied(1, True), ["weights.0"]),
    "tied, two layers": (lambda: Tied(2, True), ["weights.0"]),
    "tied, transposed": (lambda: Tied(2, False), ["weights.0"]),
    "memory": (Memory, ["memory"]),
    "iterated": (Iterated, ["again.weight"]),
}


@pytest.mark.parametrize("name", FORWARD)
def test_layers_that_are_used_again_are_no_derivatives(name):
    torch.manual_seed(0)
    build, heads = FORWARD[name]
    assert found(build(), square) == (heads, [])


def test_a_network_that_takes_a_derivative_has_the_head():
    def loss(model):
        x = rows().requires_grad_()
        return model["second"](slope(model["first"](x), x)).square().mean()

    torch.manual_seed(0)
    model = nn.ModuleDict({"second": mlp(6, 8, 3)[:-1], "first": Net()})
    heads, unseen = found(model, loss)
    assert "second.2.weight" in heads
    assert not {"first.stem.weight", "first.inner.weight"} & {*heads, *unseen}


def test_what_the_graph_cannot_show_is_said():
    class Mixed(nn.Module):
        """Convolutions, and a bare matrix that could stand on either side."""

        def __init__(self):
            super().__init__()
            self.head = nn.Parameter(torch.randn(8, 2))
            self.stem, self.inner = nn.Conv1d(1, 4, 3), nn.Conv1d(4, 2, 1)

        def forward(self, x):
            return F.silu(self.inner(F.silu(self.stem(x[:, None])))).flatten(1) @ self.head

    def loss(model):
        x = rows().requires_grad_()
        return slope(model(x), x).square().mean()

    torch.manual_seed(0)
    heads, unseen = found(Mixed(), loss)
    assert unseen == ["head"]
    assert not heads
    assert found(Mixed(), both) == (["head"], [])
