"""EMA-Nesterov: a movement along the drift before every full step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from benchmarks.peers.around import AroundOptimizers
from hybrid_predict.errors import ConfigError

WINDOW = (0.15, 0.75)
"""Share of the run between which weights are moved ahead."""


class EMANesterov(AroundOptimizers):
    r"""Before every full step, weights move along the average of past displacements.

    .. math:: x_t = w_t + \beta \frac{\eta_{t-1}}{\max_s \eta_s} m_t, \qquad
        w_{t+1} = A(x_t), \qquad m_{t+1} = \gamma m_t + (1 - \gamma) (w_{t+1} - x_t)

    with A the inner optimizers' step at :math:`x_t` and :math:`\eta` the learning rate of the
    parameter's group. Nothing is skipped and nothing is verified.

    Args:
        optimizers: The inner optimizer or several; all their parameters take part.
        factor: :math:`\beta`, at least 0, dimensionless.
        decay: :math:`\gamma` in [0, 1), dimensionless.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        factor: float = 0.3,
        decay: float = 0.99,
    ) -> None:
        if not factor >= 0.0:
            raise ConfigError("factor", "a number, at least 0", factor)
        if not 0.0 <= decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", decay)
        super().__init__(optimizers)
        self._factor, self._decay = factor, decay
        self._drift = [torch.zeros_like(p) for p in self._parameters]
        group_of = {id(p): k for k, g in enumerate(self.param_groups) for p in g["params"]
                    if p.requires_grad}  # fmt: skip
        self._groups = list(group_of.values())
        self._peaks = [0.0] * len(self.param_groups)
        self._count, self._first, self._last = 0, 0, 0

    def plan(self, updates: int) -> None:
        """Learn the run's length, in updates; without it, weights are never moved ahead."""
        self._first, self._last = (round(share * updates) for share in WINDOW)

    @torch.no_grad()
    def step(self) -> None:
        """One step of every inner optimizer, then the movement in front of the next."""
        before = [p.clone() for p in self._parameters]
        super().step()
        moved = torch._foreach_sub(self._parameters, before)
        torch._foreach_lerp_(self._drift, list(moved), 1.0 - self._decay)
        self._count += 1
        factors = self._factors()
        if self._first <= self._count < self._last:
            ahead = torch._foreach_mul(self._drift, factors)
            torch._foreach_add_(self._parameters, ahead)

    def _factors(self) -> list[float]:
        """The share of its drift that every parameter moves ahead, by its group's rate."""
        rates = [float(group["lr"]) for group in self.param_groups]
        self._peaks = [max(pair) for pair in zip(self._peaks, rates, strict=True)]
        shares = [r / p if p > 0 else 0.0 for r, p in zip(rates, self._peaks, strict=True)]
        return [self._factor * shares[k] for k in self._groups]
