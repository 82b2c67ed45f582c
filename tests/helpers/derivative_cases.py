"""Networks whose derivatives stand in the loss; names and shapes alone would mistake the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from graph_cases import Multiplied, rows
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


class Cubed(torch.autograd.Function):
    """A function of one's own that can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient * ctx.saved_tensors[0].square()


ACTIVATIONS: dict[str, Function] = {
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

    def __init__(self, act: Function = torch.sin, outputs: int = 2) -> None:
        super().__init__()
        self.act = act
        self.head, self.inner = nn.Linear(8, outputs), nn.Linear(8, 8)
        self.stem = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.inner(self.act(self.stem(x)))))


class Bare(nn.Module):
    """Matrices without modules, of shape (inputs, outputs), some of them in a function."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        shapes = {"head": (8, 2), "inner": (8, 8), "stem": (6, 8)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) / 3))
        self.how = how

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.how == "function":
            return Multiplied.apply(x, weight)
        if self.how == "left":
            return (weight.T @ x.T).T
        return torch.einsum("bi,io->bo", x, weight) if self.how == "einsum" else x @ weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sin(self.product(torch.sin(self.product(x, self.stem)), self.inner))
        return self.product(hidden, self.head)


class Linked(Net):
    """Layers that follow each other directly, that are gated, or that are skipped."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.gate, self.first = how, nn.Linear(6, 8), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "direct":
            return super().forward(self.first(x))
        hidden = self.stem(self.first(x).sin()) * self.gate(x)
        if self.how == "skipped":
            hidden = self.norm(hidden + self.inner(F.silu(hidden)))
            return self.head(hidden)
        return self.head(F.silu(self.inner(hidden)))


class Critic(nn.Module):
    """Convolutions, then a linear layer."""

    def __init__(self, act: Function = F.silu) -> None:
        super().__init__()
        self.act, self.head = act, nn.Linear(16, 3)
        self.inner, self.stem = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(1, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        images = F.pad(x[:, None, None], (1, 1, 2, 4))
        return self.head(self.act(self.inner(self.act(self.stem(images)))).flatten(1))


class Atoms(nn.Module):
    """Messages between atoms, weighted by filters of their distances, as in SchNet."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.update = nn.Linear(8, 2), nn.Linear(8, 8)
        self.message, self.kind = nn.Linear(8, 8), nn.Linear(3, 8)
        self.mixed, self.filter = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        places = x.reshape(-1, 3)
        far = (places[:, None] - places[None]).square().sum(-1)
        basis = torch.exp(-(far[..., None] - torch.arange(4.0)).square())
        atoms = self.kind(F.one_hot(torch.arange(len(places)) % 3, 3).float())
        filters = self.mixed(F.silu(self.filter(basis)))
        atoms = atoms + F.silu(self.update((filters * self.message(atoms)[None]).sum(1)))
        return self.energy(atoms)


NETS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
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


def slope(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def both(net: nn.Module) -> Tensor:
    """Values and derivatives, as energies and forces."""
    x = rows().requires_grad_()
    y = net(x)
    return y.square().mean() + (slope(y, x) - 1).square().mean()


def alone(net: nn.Module) -> Tensor:
    x = rows().requires_grad_()
    return (slope(net(x), x) - 1).square().mean()


def laplacian(net: nn.Module, value: bool = True) -> Tensor:
    x = rows().requires_grad_()
    y = net(x)
    first = slope(y, x)
    second = sum(slope(first[:, k], x)[:, k] for k in range(2))
    return (second + (y.sum(1) if value else 0.0) - 1).square().mean()


def residual(net: nn.Module) -> Tensor:
    return laplacian(net, value=False)


def of_length(net: nn.Module) -> Tensor:
    """A derivative of the length of a derivative."""
    x = rows().requires_grad_()
    return slope(slope(net(x), x).square(), x).square().mean()


def penalty(net: nn.Module) -> Tensor:
    """As in WGAN-GP: two values, and the length of a slope elsewhere."""
    real, made = rows(), rows().flip(0)
    x = ((real + made) / 2).requires_grad_()
    lengths = slope(net(x), x).norm(dim=1)
    return net(made).mean() - net(real).mean() + 10 * (lengths - 1).square().mean()


def functional(net: nn.Module) -> Tensor:
    """As ``torch.func`` takes derivatives, sample by sample."""
    slopes = torch.func.vmap(torch.func.jacrev(lambda one: net(one[None])[0]))(rows())
    return (slopes - 1).square().mean()


def forward_mode(net: nn.Module) -> Tensor:
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
