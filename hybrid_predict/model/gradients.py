"""The gradients of parameters, dense, and their norms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.ranks import shards
from hybrid_predict.tensors.lists import HALF


def dense_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the local shards of the gradients that parameters have, dense and detached."""
    known = [p.grad for p in parameters]
    usual = [type(g) is Tensor and not (g.is_sparse or g.requires_grad) for g in known]
    if all(usual) and shards.all_plain(parameters):
        return known  # type: ignore[return-value]
    return [dense_gradient(p) for p in parameters]


def dense_gradient(parameter: Tensor) -> Tensor:
    """Return the local shard of a parameter's gradient, dense and detached."""
    gradient = shards.local_gradient(parameter)
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient


def gradient_norms(gradients: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Return the Euclidean norm of every gradient's local shard, 0-dim."""
    if not gradients:
        return []
    flat = [torch.view_as_real(g) if g.dtype.is_complex else g for g in gradients]
    # The norm may exceed the range of 16-bit floats, which ends at 65504.
    kinds = {g.dtype for g in flat}
    half = bool(kinds & HALF) and torch.float64 not in kinds
    norms = list(torch._foreach_norm(flat, 2, torch.float32 if half else None))
    return norms if scale is None else [n / scale.to(n.device) for n in norms]
