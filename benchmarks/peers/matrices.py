"""Base class of Muon and SOAP-Muon, optimizers of matrices and convolution kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from benchmarks.peers.closures import evaluated
from hybrid_predict.errors import ConfigError, UnsupportedSetupError


class MatrixOptimizer(Optimizer, ABC):
    """An optimizer of parameters with at least two dimensions, built on torch's Muon.

    Args:
        params: Parameters of at least two dimensions, or groups of them.
        defaults: Hyperparameters of groups that do not name them.

    Raises:
        ConfigError: If a parameter has fewer than two dimensions.
        UnsupportedSetupError: If torch has no Muon.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UnsupportedSetupError(
                "torch", "torch 2.9 or later for Muon", torch.__version__, "Upgrade torch."
            )
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters.

        Raises:
            ConfigError: If one of them has fewer than two dimensions.
        """
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dim() < 2:
                raise ConfigError(
                    "params",
                    "parameters of at least two dimensions",
                    tuple(p.shape),
                    "Give vectors to another optimizer, such as AdamW.",
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update every parameter that has a gradient.

        Args:
            closure: Computes the loss and its gradients anew, if given.

        Returns:
            What the closure returned.
        """
        loss = evaluated(closure)
        self._update()
        return loss

    @abstractmethod
    def _update(self) -> None:
        """Move every parameter that has a gradient."""


def put_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy matrices into their parameters, where they share no storage with them."""
    for p, matrix in pairs:
        if matrix.data_ptr() != p.data_ptr():
            p.copy_(matrix.view(p.shape))
