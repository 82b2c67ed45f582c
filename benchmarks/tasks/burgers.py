"""A physics-informed net for the viscous Burgers equation (Raissi et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, grid, perceptron

Batch = tuple[Tensor, Tensor, Tensor]
"""Points (x, t) inside, at t = 0, and at x = -1 or 1, each of shape [N, 2]."""


@torch.enable_grad()
def burgers_residual(net: Callable[[Tensor], Tensor], points: Tensor, viscosity: float) -> Tensor:
    r"""How far a net u is from solving Burgers' equation at points (x, t), shape [N, 2].

    .. math:: r = u_t + u u_x - \nu u_{xx}

    Residuals, of shape [N], have autograd history even where gradients are off.
    """
    points = points.detach().requires_grad_()
    u = net(points).squeeze(1)
    u_x, u_t = torch.autograd.grad(u.sum(), points, create_graph=True)[0].unbind(1)
    u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, 0]
    return u_t + u * u_x - viscosity * u_xx


@dataclass(frozen=True, kw_only=True)
class BurgersTask(Task):
    """Solve the equation on [-1, 1] x [0, 1]; six times Raissi et al.'s viscosity, 0.01 / pi."""

    metric = "log10 of the physics loss on a grid"

    steps: int = 1000
    recipe: Recipe = Recipe(rates=grid(0.008, 4), weight_decay=0.0)
    viscosity: float = 0.02
    widths: tuple[int, ...] = (64, 64, 64)
    inside: int = 512
    edges: int = 128
    grid: int = 65

    def net(self) -> nn.Module:
        start = nn.init.xavier_normal_
        return nn.Sequential(*perceptron(2, *self.widths, 1, activation=nn.Tanh, start=start))

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        sides = torch.arange(self.edges) % 2 * 2.0 - 1
        while True:
            x = 2 * torch.rand(self.inside + self.edges, generator=generator) - 1
            t = torch.rand(self.inside + self.edges, generator=generator)
            inside = torch.stack((x, t), dim=1)[: self.inside]
            initial = torch.stack((x[self.inside :], torch.zeros(self.edges)), dim=1)
            yield inside, initial, torch.stack((sides, t[self.inside :]), dim=1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared violation of equation, initial condition -sin(pi x), and zero boundary."""
        inside, initial, boundary = batch
        start = -(math.pi * initial[:, :1]).sin()
        return (
            burgers_residual(model, inside, self.viscosity).square().mean()
            + (model(initial) - start).square().mean()
            + model(boundary).square().mean()
        )

    def evaluate(self, model: nn.Module) -> float:
        x = torch.linspace(-1, 1, self.grid)
        t = torch.linspace(0, 1, self.grid)
        points = (
            torch.cartesian_prod(x, t),
            torch.cartesian_prod(x, torch.zeros(1)),
            torch.cartesian_prod(torch.tensor([-1.0, 1.0]), t),
        )
        return float(self.loss(model, points).detach().log10())


PINN = BurgersTask("pinn", "physics-informed net for Burgers' equation")
