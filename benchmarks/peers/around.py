"""Peers that wrap other optimizers: an outer loop, a moving average, a movement ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

WINDOW = (0.15, 0.75)
"""Share of the run between which `EMANesterov` moves weights ahead."""


class AroundOptimizers:
    """Several optimizers as one; subclasses do something after every step."""

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        self.optimizers = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
        unique = {id(p): p for group in self.param_groups for p in group["params"]}
        self._parameters = [p.detach() for p in unique.values() if p.requires_grad]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the inner optimizers, in order."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def plan(self, updates: int) -> None:
        """Learn how many updates the run has."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to zero."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self) -> None:
        """Step every inner optimizer, then do what the subclass adds."""
        for optimizer in self.optimizers:
            optimizer.step()
        self._after_step()

    def _after_step(self) -> None:
        """Do nothing; subclasses override it."""


class EMAReadout(AroundOptimizers):
    r"""Train as the optimizers do, evaluate at an exponential moving average of the weights.

    .. math:: \bar w \leftarrow \gamma \bar w + (1 - \gamma) w, \qquad \bar w_0 = w_0

    Batch-norm statistics stay those of the training weights.

    References:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging (1992).
    """

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer], decay: float = 0.99) -> None:
        super().__init__(optimizers)
        self._average = [p.clone() for p in self._parameters]
        self._update = get_ema_multi_avg_fn(decay)

    def _after_step(self) -> None:
        self._update(self._average, self._parameters, 0)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the average into the parameters; training is over."""
        torch._foreach_copy_(self._parameters, self._average)


def ema_readout(optimizers: Optimizer | Sequence[Optimizer], decay: float = 0.99) -> EMAReadout:
    """The moving average of the weights for evaluation; see :class:`EMAReadout`."""
    return EMAReadout(optimizers, decay)


class EMANesterov(AroundOptimizers):
    r"""Before every full step, weights move along the average of past displacements.

    .. math:: x_t = w_t + \beta \frac{\eta_{t-1}}{\max_s \eta_s} m_t, \qquad
        w_{t+1} = A(x_t), \qquad m_{t+1} = \gamma m_t + (1 - \gamma) (w_{t+1} - x_t)

    with A the inner optimizers' step at :math:`x_t`, :math:`\eta` the learning rate of the
    parameter's group, :math:`\beta` the ``factor`` and :math:`\gamma` the ``decay``.

    References:
        EMA-Nesterov (2026), https://arxiv.org/abs/2605.25395
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        factor: float = 0.3,
        decay: float = 0.99,
    ) -> None:
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


class OuterMomentum(AroundOptimizers):
    r"""Every K = ``every`` inner steps, one momentum step along what they moved.

    .. math::
        s = a - w, \qquad b \leftarrow \mu b + s, \qquad
        w \leftarrow a - \eta (\mu b + s), \qquad a \leftarrow w

    with w the weights after K inner steps, a those after the last outer step, and :math:`\eta` the
    outer ``rate``. Weights are evaluated as they stand, also in the middle of an inner cycle.
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        every: int,
        rate: float,
        momentum: float,
    ) -> None:
        super().__init__(optimizers)
        self.every, self.rate, self.momentum = every, rate, momentum
        self._anchor = [p.clone() for p in self._parameters]
        self._buffer = [torch.zeros_like(p) for p in self._parameters] if momentum > 0 else []
        self._count = 0

    def _after_step(self) -> None:
        self._count += 1
        if self._count % self.every == 0:
            self._outer_step()

    def _outer_step(self) -> None:
        fast, anchor, buffer = self._parameters, self._anchor, self._buffer
        if buffer:
            torch._foreach_mul_(buffer, self.momentum)
            torch._foreach_add_(buffer, torch._foreach_sub(anchor, fast))
        # a - rate * s as an interpolation, which is exactly w at rate 1.
        torch._foreach_lerp_(anchor, fast, self.rate)
        if buffer:
            torch._foreach_add_(anchor, buffer, alpha=-self.rate * self.momentum)
        torch._foreach_copy_(fast, anchor)


def lookahead(
    optimizers: Optimizer | Sequence[Optimizer], every: int = 5, rate: float = 0.5
) -> OuterMomentum:
    r"""Lookahead: :math:`\phi \leftarrow \phi + \alpha (\theta - \phi)` every K steps.

    References:
        Zhang et al., Lookahead Optimizer: k steps forward, 1 step back (2019).
    """
    return OuterMomentum(optimizers, every, rate, momentum=0.0)


def snoo(
    optimizers: Optimizer | Sequence[Optimizer],
    every: int = 20,
    rate: float = 0.7,
    momentum: float = 0.67,
) -> OuterMomentum:
    """SNOO: Nesterov momentum on what every K inner steps moved.

    References:
        Kallusky et al., SNOO: Step-K Nesterov Outer Optimizer (2025), arXiv 2510.15830.
    """
    return OuterMomentum(optimizers, every, rate, momentum)
