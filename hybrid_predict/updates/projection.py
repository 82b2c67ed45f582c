"""Detects optimizers that project or mask their updates, which a corrected update would undo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import final

import torch
from torch import Tensor

from hybrid_predict.torch import lists
from hybrid_predict.torch.lists import Counts, minus, upcast
from hybrid_predict.torch.optimizer import Options

PROJECTED = "matrices are left to an optimizer that projects or masks its updates"
"""Event of the ledger: why tensors are not corrected."""

_ORTHOGONAL, _PART, _NOISE = 1e-3, 1e-2, 8.0
"""Largest cosine, smallest share of the update's length, and how far above rounding."""

_ATTEMPTS = 8  # full steps in which parameters are examined that had no update before


def projects(
    values: Sequence[Tensor],
    before: Sequence[Tensor],
    gradients: Sequence[Tensor],
    options: Sequence[Options],
    momentum: float,
    counts: Counts,
) -> Tensor:
    r"""Return whether first updates are orthogonal projections of plain gradient descent.

    .. math:: u = - \eta P g \iff \langle u, u + \eta g \rangle = 0

    with P any orthogonal projection: onto the null space of earlier tasks, or a mask. With momentum
    only the first update is a multiple of the gradient; with Nesterov's the factor differs.
    Projections of updates that are not linear in the gradient, such as Adam's, cannot be detected.

    Returns:
        Whether there was an update, and whether it was a projection, bools of shape (K, 2).
    """
    rows = list(zip(values, before, options, strict=True))
    update = [minus(v, b, 1.0 - o.shrink) for v, b, o in rows]
    with_decay = [minus(v, b, 1.0) for v, b, _ in rows]  # decay may be projected as well
    moves, columns = [*update, *with_decay], list(zip(update, options, gradients, strict=True))
    # The gradients have the sign of the learning rate already.
    offs = [
        [u + (lists.size(o.rate) * factor) * upcast(g) for u, o, g in columns]
        for factor in sorted({1.0, 1.0 + momentum})
    ]
    measured = [*map(upcast, values), *moves, *chain(*offs)]
    norms = lists.norms(measured, counts).reshape(3 + len(offs), -1)
    twice = [off for each in offs for off in each * 2]
    dots = lists.dots(moves * len(offs), twice, counts).abs().reshape(len(offs), 2, -1)
    noise = _NOISE * torch.tensor([torch.finfo(v.dtype).eps for v in values]).to(norms) * norms[0]
    sizes, lengths = norms[1:3], norms[3:, None]
    large = (lengths > _PART * sizes) & (lengths > noise) & (sizes > noise)
    projected = (large & (dots <= _ORTHOGONAL * sizes * lengths)).flatten(0, 1).any(0)
    return torch.stack([norms[1] > 0, projected], dim=1)


@final
@dataclass
class Examination:
    """Whether the optimizer of a group projects its updates, by name of each examined parameter."""

    projected: dict[str, bool] = field(default_factory=dict)
    attempts: int = 0  # full steps in which parameters were examined

    def copies(
        self, names: Sequence[str], members: Sequence[int], gradients: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Copy the gradients of parameters still to be examined; optimizers may write to them."""
        rows = zip(members, gradients, strict=True)
        unknown = {k: g for k, g in rows if names[k] not in self.projected}
        if not unknown or self.attempts >= _ATTEMPTS:
            return {}
        self.attempts += 1
        return {k: g.clone() for k, g in unknown.items()}

    def read(self, names: Sequence[str], answers: Tensor) -> None:
        """Read results of :func:`projects` about the named parameters; the host waits once."""
        rows = zip(names, answers.tolist(), strict=True)
        self.projected.update({name: projected for name, (moved, projected) in rows if moved})
