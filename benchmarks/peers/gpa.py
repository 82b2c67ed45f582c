"""AdamW with generalised primal averaging."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.optimizer import ParamsT

_INNER = ("lr", "betas", "eps", "weight_decay", "fused")


class GPAAdamW(Optimizer):
    r"""AdamW on one sequence, gradients at another, evaluation at a third.

    .. math::
        y = \mu_y x + (1 - \mu_y) z, \qquad
        z \leftarrow (1 - \eta\lambda) z - \eta \, \mathrm{Adam}(\nabla f(y)), \qquad
        x \leftarrow \mu_x x + (1 - \mu_x) z

    The parameters hold y while training, and x after :meth:`eval`. Only z needs a buffer: y moves
    without x, by :math:`y \leftarrow \mu_x (y - (1 - \mu_y) z) + (1 - \mu_y \mu_x) z^+`.

    References:
        Defazio et al., Smoothing DiLoCo with Primal Averaging for Faster Training of LLMs (2025),
        arXiv 2512.17131. With weight decay of y in place of z it is their published code.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        mu_x: float = 0.9967,
        mu_y: float = 0.7,
        fused: bool | None = None,
    ) -> None:
        values = (lr, betas, eps, weight_decay, fused)
        defaults = dict(zip(_INNER, values, strict=True))
        super().__init__(params, {**defaults, "mu_x": mu_x, "mu_y": mu_y})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            reached = [p for p in group["params"] if p.grad is not None]
            if reached:
                self._move(group, reached)

    def _move(self, group: dict[str, Any], reached: list[Tensor]) -> None:
        mu_x, mu_y = group["mu_x"], group["mu_y"]
        states = [self.state[p] for p in reached]
        zs = []
        for p, state in zip(reached, states, strict=True):
            # AdamW fills a state only if it is empty, so z is kept out of it meanwhile.
            z = state.pop("z") if "z" in state else p.detach().clone()
            z.grad = p.grad
            zs.append(z)
        ys = [p.detach() for p in reached]
        torch._foreach_add_(ys, zs, alpha=mu_y - 1.0)
        torch._foreach_mul_(ys, mu_x)
        # A fresh inner optimizer has no memory of its own, so that ``self.state`` is all there is
        # to save, copy or load.
        inner = AdamW([{"params": zs, **{name: group[name] for name in _INNER}}])
        inner.state.update(zip(zs, states, strict=True))
        inner.step()
        torch._foreach_add_(ys, zs, alpha=1.0 - mu_y * mu_x)
        for z, state in zip(zs, states, strict=True):
            z.grad = None  # or it would outlive zero_grad()
            state["z"] = z

    @torch.no_grad()
    def eval(self) -> None:
        """Put x into the parameters; training is over."""
        for group in self.param_groups:
            for p in group["params"]:
                if state := self.state.get(p):
                    p.lerp_(state["z"], 1.0 - 1.0 / group["mu_y"])
