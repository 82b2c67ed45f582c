"""Measurements of gradients: norms, and alignments with a forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from hybrid_predict.torch import shards
from hybrid_predict.torch.lists import is_half


@final
@dataclass(frozen=True)
class GradientInfo:
    r"""Loss and gradients of one full step, by parameter name.

    Args:
        loss: Training loss; nan if it is unknown.
        total_norm: Euclidean norm of all gradients together, as the optimizer applies them.
        norms: Euclidean norm of each gradient.
        alignments: :math:`-\langle g, \hat\Delta \rangle / (\|g\| \|\hat\Delta\|)` of each
            parameter that predicted steps moved right before; positive if they moved downhill.

    All values are floats, or 0-dim tensors on the device if they have not been read yet.
    """

    loss: float | Tensor
    total_norm: float | Tensor
    norms: Mapping[str, float | Tensor] = field(default_factory=dict)
    alignments: Mapping[str, float | Tensor] = field(default_factory=dict)


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
