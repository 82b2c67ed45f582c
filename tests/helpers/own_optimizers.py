"""Optimizers of one's own, and a small network that they train with the engine or without."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import loops
import torch
from torch import Tensor, nn

from hybrid_predict import HybridConfig, HybridEngine

RATE = 1e-2


Rule = Callable[[Tensor, dict[str, Any], dict[str, Any]], Any]
"""Takes a parameter, its state and its group."""


class Own(torch.optim.Optimizer):
    """Gradient descent with whatever a rule makes of the gradient, or does to the weights.

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate.
        adam: Whether the gradient is scaled as in Adam.
        descended: What is descended along; the gradient, unless given.
        finish: What is done to the weights at last.
        **options: More options of every group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = RATE,
        adam: bool = False,
        descended: Rule | None = None,
        finish: Rule | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "adam": adam, **options})
        self.rules = descended, finish

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    gradient = self.descended(p, state, group)
                    if group["adam"]:
                        gradient = self.scaled(gradient, state)
                    p.sub_(gradient, alpha=group["lr"])
                    self.finish(p, state, group)

    def scaled(self, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        first, second = (state.setdefault(k, torch.zeros_like(gradient)) for k in ("m", "v"))
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        unbiased = first / (1 - 0.9 ** state["count"])
        return unbiased / ((second / (1 - 0.999 ** state["count"])).sqrt() + 1e-8)

    def descended(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        return self.rules[0](p, state, group) if self.rules[0] else p.grad.clone()

    def finish(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if self.rules[1]:
            self.rules[1](p, state, group)


class Lion(Own):
    """Goes by the sign of gradient and average; the average decays by the second beta.

    Chen et al., Symbolic Discovery of Optimization Algorithms (2023).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = RATE,
        betas: tuple[float, float] = (0.9, 0.99),
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas=betas, **{"weight_decay": 0.0, **options})

    def descended(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        average = state.setdefault("exp_avg", torch.zeros_like(p))
        (first, second), gradient = group["betas"], p.grad
        assert gradient is not None
        p.mul_(1 - group["lr"] * group["weight_decay"])
        sign = average.lerp(gradient, 1 - first).sign()
        average.lerp_(gradient, 1 - second)
        return sign


def net() -> nn.Sequential:
    return loops.net(6, 24, 24, 24, 1)


def train_step(
    model: nn.Module, optimizer: Any, k: int, engine: HybridEngine | None, sign: float = 1.0
) -> None:
    x = loops.normal(k, 32, 6)
    target = x.prod(1, keepdim=True).tanh()
    loops.full_step(engine, [optimizer], lambda: sign * (model(x) - target).square().mean())


def run(
    model: nn.Module, optimizer: Any, steps: int, plugged: bool, sign: float = 1.0, **changes: Any
) -> HybridEngine | None:
    """Train for some steps, and return the engine."""
    engine = None
    if plugged:
        config = HybridConfig(total_steps=steps, max_overhead=1e9, **changes)
        engine = HybridEngine(model, optimizer, config)
    for k in range(steps):
        if engine and engine.done:
            break
        train_step(model, optimizer, k, engine, sign)
    return engine
