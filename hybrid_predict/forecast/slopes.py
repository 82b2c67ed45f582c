"""How steep a predicted movement was by the averaged gradient, and the displacement after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.tensors import TorchBackend, shards
from hybrid_predict.torch.deltas import WeightDelta


def slopes(
    movement: WeightDelta,
    average: Sequence[Tensor],
    moved: Sequence[Tensor],
    rates: Sequence[float | Tensor],
    parameters: Sequence[Tensor],
) -> Tensor:
    r"""Inner products with the averaged gradient, and squared lengths, of two movements.

    .. math::
        \Bigl( \sum_k \langle m_k, \Delta_k \rangle, \; \sum_k \|\Delta_k\|^2, \;
        \sum_k \langle m_k, D_k \rangle, \; \sum_k \|D_k\|^2 \Bigr)

    Args:
        movement: :math:`\Delta`, the predicted movement of the K tensors.
        average: :math:`m_k`, the averaged gradients.
        moved: :math:`D_k / \eta_k`, the displacements per unit of the learning rate.
        rates: :math:`\eta_k`, the learning rates.
        parameters: The K parameters, which may be sharded.

    Returns:
        Four numbers on the device, which add up over the ranks; zeros where nothing was predicted.
    """
    roots = shards.norm_factors(parameters) or [1.0] * len(parameters)
    backend, rows = TorchBackend(), []
    for vectors, factors in ((movement.directions, movement.factors), (moved, rates)):
        dots, norms = backend.dots(average, vectors).unbind(), backend.norms(vectors).unbind()
        columns = list(zip(dots, norms, factors, roots, strict=True))
        rows.append(sum(dot * (f * root**2) for dot, _, f, root in columns))
        rows.append(sum((norm * (f * root)).square() for _, norm, f, root in columns))
    found = torch.stack([torch.as_tensor(row) for row in rows])
    return torch.where(found[1] > 0, found, torch.zeros_like(found))
