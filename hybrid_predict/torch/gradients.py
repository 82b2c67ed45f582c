"""Measurements of gradients: norms, and alignments with a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from hybrid_predict.torch import shards


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
