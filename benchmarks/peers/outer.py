"""Outer loops over any optimizers: Lookahead and the step-K Nesterov outer optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from benchmarks.peers.around import AroundOptimizers
from hybrid_predict.errors import ConfigError


class OuterMomentum(AroundOptimizers):
    r"""Every K inner steps, one momentum step along what they moved.

    .. math::
        s = a - w, \qquad b \leftarrow \mu b + s, \qquad
        w \leftarrow a - \eta (\mu b + s), \qquad a \leftarrow w

    with w the weights after K inner steps and a the anchor, the weights after the last outer step.
    Schedulers such as ``LambdaLR`` work on the inner optimizers. Evaluation weights are the
    weights as they stand, also in the middle of an inner cycle, so there is no ``eval``.

    Args:
        optimizers: The inner optimizer or several; all their parameters take part.
        every: Inner steps per outer step, K, at least 1.
        rate: Outer learning rate :math:`\eta` > 0, dimensionless.
        momentum: Outer momentum :math:`\mu` in [0, 1), dimensionless.

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        every: int,
        rate: float,
        momentum: float,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ConfigError("every", "an integer, at least 1", every)
        if not rate > 0.0:
            raise ConfigError("rate", "a number above 0", rate)
        if not 0.0 <= momentum < 1.0:
            raise ConfigError("momentum", "a number in [0, 1)", momentum)
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

    Args:
        optimizers: The inner optimizer or several, which move the fast weights.
        every: K, inner steps per interpolation.
        rate: :math:`\alpha`, dimensionless.

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

    Args:
        optimizers: The inner optimizer or several.
        every: Inner steps per outer step.
        rate: Outer learning rate, dimensionless.
        momentum: Outer momentum, dimensionless.

    References:
        Kallusky et al., SNOO: Step-K Nesterov Outer Optimizer (2025), arXiv 2510.15830.
    """
    return OuterMomentum(optimizers, every, rate, momentum)
