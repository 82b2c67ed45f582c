"""Detects optimizers that project or mask their updates, which a corrected update would undo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.tensors import TorchBackend, upcast
from hybrid_predict.tensors.torch import minus
from hybrid_predict.torch.optimizer import Options

PROJECTED = "matrices are left to an optimizer that projects or masks its updates"
"""Event of the ledger: why tensors are not corrected."""

_ORTHOGONAL, _PART, _NOISE = 1e-3, 1e-2, 8.0
"""Largest cosine, smallest share of the update's length, and how far above rounding."""

_ATTEMPTS = 8
"""Number of full steps in which parameters are examined that had no update before."""


def projects(
    values: Sequence[Tensor],
    before: Sequence[Tensor],
    gradients: Sequence[Tensor],
    options: Sequence[Options],
    momentum: float,
    backend: TorchBackend,
) -> Tensor:
    r"""Whether first updates are orthogonal projections of plain gradient descent.

    .. math:: u = - \eta P g \iff \langle u, u + \eta g \rangle = 0

    with P any orthogonal projection: onto the null space of earlier tasks, or a mask. It is known
    from zero, not from P, so that nothing has to be decomposed. With momentum, only the first
    update is a multiple of the gradient, with Nesterov's by another factor. Projections of updates
    that do not follow the gradient linearly, as Adam's, cannot be told.

    Args:
        values: K weights after their updates.
        before: Weights before them.
        gradients: What the updates follow.
        options: How the optimizer updates each.
        momentum: Momentum coefficient of the optimizer.
        backend: Kernels for these tensors; ranks reduce twice.

    Returns:
        Whether there was an update, and whether it was a projection, bools of shape (K, 2).
    """
    rows = list(zip(values, before, options, strict=True))
    own = [minus(v, b, 1.0 - o.shrink) for v, b, o in rows]
    with_decay = [minus(v, b, 1.0) for v, b, _ in rows]  # decay may be projected as well
    columns = list(zip(own, options, gradients, strict=True))
    offs = [
        [u + (_size(o.rate) * factor) * upcast(g) for u, o, g in columns]
        for factor in sorted({1.0, 1.0 + momentum})
    ]
    wide = [upcast(v) for v in values]
    moves, joined = (own, with_decay), [off for each in offs for off in each]
    norms = backend.norms([*wide, *own, *with_decay, *joined]).reshape(3 + len(offs), -1)
    lefts = [move for _ in offs for each in moves for move in each]
    rights = [off for each in offs for _ in moves for off in each]
    dots = backend.dots(lefts, rights).abs().reshape(len(offs), len(moves), -1)
    noise = _NOISE * torch.tensor([torch.finfo(v.dtype).eps for v in values]).to(norms) * norms[0]
    found = torch.zeros_like(norms[0], dtype=torch.bool)
    for length, products in zip(norms[3:], dots, strict=True):
        for size, product in zip(norms[1:3], products, strict=True):
            large = (length > _PART * size) & (length > noise) & (size > noise)
            found = found | large & (product <= _ORTHOGONAL * size * length)
    return torch.stack([norms[1] > 0, found], dim=1)


def _size(rate: float | Tensor) -> Any:
    """The learning rate without its sign, which the gradients have already."""
    return abs(rate)


@final
@dataclass
class Examination:
    """What first updates have shown of the optimizer of a group.

    Args:
        found: Whether the optimizer projects its updates, by name of each examined parameter.
        attempts: Number of full steps in which parameters were examined.
    """

    found: dict[str, bool] = field(default_factory=dict)
    attempts: int = 0

    def copies(
        self,
        names: Sequence[str],
        members: Sequence[int],
        gradients: Sequence[Tensor],
        directions: Sequence[Tensor],
    ) -> dict[int, Tensor]:
        """Copy the gradients of what is still to be examined, as an optimizer may write to them.

        Args:
            names: Names of all parameters of the group.
            members: Positions of the parameters that have a gradient.
            gradients: These gradients.
            directions: Their corrected updates; none if nothing is corrected.
        """
        unknown = [names[k] not in self.found for k in members]
        if not (directions and any(unknown) and self.attempts < _ATTEMPTS):
            return {}
        self.attempts += 1
        rows = zip(members, gradients, unknown, strict=True)
        return {k: gradient.clone() for k, gradient, wanted in rows if wanted}

    def read(self, names: Sequence[str], answers: Tensor) -> None:
        """Read results of :func:`projects` about the named parameters; the host waits once."""
        rows = zip(names, answers.tolist(), strict=True)
        self.found.update({name: found for name, (moved, found) in rows if moved})
