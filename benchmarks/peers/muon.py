"""Muon for hidden matrices and convolution kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from benchmarks.peers.matrices import MatrixOptimizer, put_back

_INNER = ("lr", "weight_decay", "momentum", "nesterov", "ns_steps", "adjust_lr_fn")
"""Hyperparameters that torch's Muon gets."""


class Muon(MatrixOptimizer):
    r"""``torch.optim.Muon``, with convolution kernels read as matrices of shape (output, rest).

    .. math::
        B \leftarrow \mu B + (1 - \mu) g, \qquad
        w \leftarrow (1 - \eta\lambda) w - \eta \, r \, \mathrm{NS}((1 - \mu) g + \mu B)

    with NS the orthogonal factor by Newton-Schulz iteration and r the factor that ``adjust_lr_fn``
    makes of the matrix's shape. Parameters of two dimensions are updated exactly as
    ``torch.optim.Muon`` does. Schedulers such as ``LambdaLR`` work on it directly.

    Args:
        params: Parameters of at least two dimensions, or groups of them, as any optimizer takes.
        lr: Learning rate :math:`\eta`.
        weight_decay: Decoupled weight decay :math:`\lambda`.
        momentum: :math:`\mu`, dimensionless.
        nesterov: Whether the gradient enters once more after the momentum.
        ns_steps: Newton-Schulz steps.
        adjust_lr_fn: ``"original"`` for :math:`r = \sqrt{\max(1, A/B)}`, or ``"match_rms_adamw"``
            for :math:`r = 0.2 \sqrt{\max(A, B)}` with (A, B) the shape of the matrix, which suits
            learning rates tuned for AdamW. ``None`` means the original.

    Raises:
        ConfigError: If a parameter has fewer than two dimensions.
        UnsupportedSetupError: If torch has no Muon.

    References:
        Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024); Liu et al.,
        Muon is Scalable for LLM Training (2025) for ``match_rms_adamw``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        values = (lr, weight_decay, momentum, nesterov, ns_steps, adjust_lr_fn)
        defaults: dict[str, Any] = dict(zip(_INNER, values, strict=True))
        super().__init__(params, defaults)
        # torch's own class is the one that knows which hyperparameters it accepts.
        torch.optim.Muon([torch.zeros(1, 1)], **defaults)

    def _update(self) -> None:
        groups, pairs = [], []
        for group in self.param_groups:
            reached = [p for p in group["params"] if p.grad is not None]
            matrices = [_matrix(p) for p in reached]
            pairs += list(zip(reached, matrices, strict=True))
            if matrices:
                groups.append({"params": matrices, **{name: group[name] for name in _INNER}})
        if groups:
            # A fresh inner optimizer has no memory of its own, so that ``self.state`` is all there
            # is to save, copy, load or undo.
            inner = torch.optim.Muon(groups)
            inner.state.update({matrix: self.state[p] for p, matrix in pairs})
            inner.step()
        put_back(pairs)


def _matrix(p: Tensor) -> Tensor:
    """The parameter as a matrix with its gradient; shares storage unless p is not contiguous."""
    matrix = p.detach().reshape(p.shape[0], -1)
    if p.grad is not None:
        matrix.grad = p.grad.reshape(matrix.shape)
    return matrix
