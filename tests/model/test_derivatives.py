"""Kinds where the loss holds a derivative of the network."""

import pytest
import torch
import torch.nn.functional as F
from derivative_cases import ACTIVATIONS, LOSSES, NETS, PLAIN, SECOND, SMOOTH, Net, both, slope
from graph_cases import mlp, resolved, rows, square
from torch import nn

# torch.func.jvp scripts a part of itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

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
