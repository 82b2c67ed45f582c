"""What the gradients say: norms, and angles with a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from hybrid_predict.tensors import shards


@dataclass(frozen=True)
class GradientInfo:
    r"""Loss and gradients of one full step, by parameter name.

    Args:
        loss: Training loss where the gradient was taken; nan if unknown.
        total_norm: Euclidean norm over all parameters, as the optimizer applies them.
        norms: Euclidean norm per parameter that a gradient has reached.
        alignments: :math:`-\langle g, \hat\Delta \rangle / (\|g\| \|\hat\Delta\|)` per parameter
            that predicted steps moved right before; positive where the movement went downhill.

    All values are floats, or 0-dim tensors on the device where they have not been read yet.
    """

    loss: float | Tensor
    total_norm: float | Tensor
    norms: Mapping[str, float | Tensor] = field(default_factory=dict)
    alignments: Mapping[str, float | Tensor] = field(default_factory=dict)


def dense_gradient(parameter: Tensor) -> Tensor:
    """This rank's shard of a parameter's gradient, dense, without autograd history."""
    gradient = shards.local_gradient(parameter)
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient
