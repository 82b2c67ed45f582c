"""Evaluation with averaged weights, for any optimizers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from benchmarks.peers.around import AroundOptimizers
from hybrid_predict.errors import ConfigError, UsageError


class EMAReadout(AroundOptimizers):
    r"""Train as the optimizers do, evaluate at an exponential moving average of the weights.

    .. math:: \bar w \leftarrow \gamma \bar w + (1 - \gamma) w, \qquad \bar w_0 = w_0

    Batch-norm statistics stay those of the training weights. Schedulers such as ``LambdaLR`` work
    on the inner optimizers.

    Args:
        optimizers: The inner optimizer or several; all their parameters are averaged.
        decay: :math:`\gamma` in [0, 1), dimensionless.

    Raises:
        ConfigError: If ``decay`` is out of range.

    References:
        Polyak and Juditsky, Acceleration of stochastic approximation by averaging (1992).
    """

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer], decay: float = 0.99) -> None:
        if not 0.0 <= decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", decay)
        super().__init__(optimizers)
        self._average = [p.clone() for p in self._parameters]
        self._update = get_ema_multi_avg_fn(decay)
        self._trained: list[Tensor] = []

    def step(self) -> None:
        """One step of every inner optimizer, then of the average.

        Raises:
            UsageError: Between :meth:`eval` and :meth:`train`.
        """
        if self._trained:
            raise UsageError("step() between eval() and train(): call train() first.")
        super().step()

    def _after_step(self) -> None:
        self._update(self._average, self._parameters, 0)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the average into the parameters."""
        if not self._trained:
            self._trained = [p.clone() for p in self._parameters]
            torch._foreach_copy_(self._parameters, self._average)

    @torch.no_grad()
    def train(self) -> None:
        """Put the training weights back, bit for bit."""
        if self._trained:
            torch._foreach_copy_(self._parameters, self._trained)
            self._trained = []


def ema_readout(optimizers: Optimizer | Sequence[Optimizer], decay: float = 0.99) -> EMAReadout:
    """The moving average of the weights for evaluation; see :class:`EMAReadout`."""
    return EMAReadout(optimizers, decay)
