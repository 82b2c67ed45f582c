"""Detects optimizers that project or mask their updates, which a corrected update would undo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from hybrid_predict.model.optimizer import Options
from hybrid_predict.tensors import TorchBackend, upcast
from hybrid_predict.tensors.torch import minus

PROJECTED = "matrices are left to an optimizer that projects or masks its updates"
"""Event of the ledger: why tensors are not corrected."""

_ORTHOGONAL, _PART, _NOISE = 1e-3, 1e-2, 8.0
"""Largest cosine, smallest share of the update's length, and how far above rounding."""

_ATTEMPTS = 8
"""Number of full steps in which parameters are examined that had no update before."""


def projects(
    value: Tensor,
    before: Tensor,
    gradient: Tensor,
    own: Options,
    momentum: float,
    backend: TorchBackend,
) -> Tensor:
    r"""Whether a first update is an orthogonal projection of plain gradient descent.

    .. math:: u = - \eta P g \iff \langle u, u + \eta g \rangle = 0

    with P any orthogonal projection: onto the null space of earlier tasks, or a mask. It is known
    from zero, not from P, so that nothing has to be decomposed. With momentum, only the first
    update is a multiple of the gradient, with Nesterov's by another factor. Projections of updates
    that do not follow the gradient linearly, as Adam's, cannot be told.

    Args:
        value: Weights after the update.
        before: Weights before it.
        gradient: What the update follows.
        own: How the optimizer updates them.
        momentum: Momentum coefficient of the optimizer.
        backend: Kernels for these tensors.

    Returns:
        Whether there was an update, and whether it was a projection, bools of shape (2,).
    """
    moves = [minus(value, before, 1.0 - own.shrink)]
    if isinstance(own.shrink, Tensor) or own.shrink:  # decay may be projected as well
        moves.append(minus(value, before, 1.0))
    noise = _NOISE * torch.finfo(value.dtype).eps * backend.norms([upcast(value)])[0]
    found = torch.zeros((), dtype=torch.bool, device=value.device)
    for factor in {1.0, 1.0 + momentum}:
        off = moves[0] + (own.rate * factor) * upcast(gradient)
        length = backend.norms([off])[0]
        for move in moves:
            size, product = backend.norms([move])[0], backend.dots([move], [off])[0]
            large = (length > _PART * size) & (length > noise) & (size > noise)
            found = found | large & (product.abs() <= _ORTHOGONAL * size * length)
    return torch.stack([backend.norms([moves[0]])[0] > 0, found])


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

    def read(self, answers: Mapping[str, Tensor]) -> None:
        """Read results of :func:`projects` by name; the host waits once."""
        device = next(iter(answers.values())).device
        rows = torch.stack([x.to(device) for x in answers.values()]).tolist()
        self.found.update(
            {n: found for n, (moved, found) in zip(answers, rows, strict=True) if moved}
        )
