"""Base class of peers that wrap other optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class AroundOptimizers:
    """Several optimizers as one; subclasses do something after every step.

    Schedulers such as ``LambdaLR`` work on the inner optimizers, whose groups these are.

    Args:
        optimizers: The inner optimizer or several.
    """

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
