"""The gradients of parameters, dense, and their norms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.ranks import shards
from hybrid_predict.tensors.lists import is_half


def dense_gradient(parameter: Tensor) -> Tensor:
    """Return the local shard of a parameter's gradient, dense and detached."""
    gradient = shards.local_gradient(parameter)
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient


def gradient_norms(gradients: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Return the Euclidean norm of every gradient's local shard, 0-dim."""
    if not gradients:
        return []
    flat = [torch.view_as_real(g) if g.is_complex() else g for g in gradients]
    # The norm may exceed the range of 16-bit floats, which ends at 65504.
    half = any(map(is_half, flat)) and not any(g.dtype == torch.float64 for g in flat)
    norms = list(torch._foreach_norm(flat, 2, torch.float32 if half else None))
    return norms if scale is None else [n / scale.to(n.device) for n in norms]
