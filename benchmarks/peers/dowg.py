"""DoWG: gradient descent whose step size is a distance over weighted gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


class DoWG(Optimizer):
    r"""DoWG, for all parameters as one vector.

    .. math::
        r^2 \leftarrow \max(r^2, \lVert w - w_0 \rVert^2), \qquad
        v \leftarrow v + r^2 \lVert g \rVert^2, \qquad
        w \leftarrow w - \eta \, r^2 g / \sqrt{v}

    ``lr`` is 1 in the paper, and ``least``, the first squared distance, that of the authors' code.

    References:
        Khaled, Mishchenko and Jin, DoWG Unleashed (2023).
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1.0, least: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})
        self._squared_distance, self._weighted = least, 0.0
        self._starts: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        weights = [p for group in self.param_groups for p in group["params"]]
        self._starts = self._starts or [p.clone() for p in weights]
        moved = _squares([p - start for p, start in zip(weights, self._starts, strict=True)])
        self._squared_distance = max(self._squared_distance, moved)
        gradients = [p.grad for p in weights if p.grad is not None]
        self._weighted += self._squared_distance * _squares(gradients)
        if not self._weighted:
            return
        size = self._squared_distance / self._weighted**0.5
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"] * size)


def _squares(tensors: Iterable[Tensor]) -> float:
    """Return the sum of all squared entries."""
    return sum(float(t.square().sum()) for t in tensors)
