"""Muon and SOAP-Muon, for hidden matrices and convolution kernels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from hybrid_predict.errors import UnsupportedSetupError

_INNER = ("lr", "weight_decay", "momentum", "adjust_lr_fn")


class MatrixOptimizer(Optimizer):
    """An optimizer of parameters with at least two dimensions, built on torch's Muon."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UnsupportedSetupError(
                "torch", "torch 2.9 or later for Muon", torch.__version__, "Upgrade torch."
            )
        super().__init__(params, defaults)


def put_back(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy matrices into their parameters, where they share no storage with them."""
    for p, matrix in pairs:
        if matrix.data_ptr() != p.data_ptr():
            p.copy_(matrix.view(p.shape))


class Muon(MatrixOptimizer):
    r"""``torch.optim.Muon``, with convolution kernels read as matrices of shape (output, rest).

    .. math::
        B \leftarrow \mu B + (1 - \mu) g, \qquad
        w \leftarrow (1 - \eta\lambda) w - \eta \, r \, \mathrm{NS}((1 - \mu) g + \mu B)

    with NS the orthogonal factor by Newton-Schulz iteration and r the factor that ``adjust_lr_fn``
    makes of the matrix's shape.

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
        adjust_lr_fn: str | None = None,
    ) -> None:
        values = (lr, weight_decay, momentum, adjust_lr_fn)
        defaults: dict[str, Any] = dict(zip(_INNER, values, strict=True))
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
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


class SOAPMuon(MatrixOptimizer):
    r"""Muon on the momentum as SOAP preconditions it; kernels are read as (output, rest).

    .. math::
        M &\leftarrow \mu M + (1 - \mu) G, \qquad N = \mu M + (1 - \mu) G \\
        V &\leftarrow \beta V + (1 - \beta) (Q_L^T G Q_R)^2 \\
        U &= Q_L \left( Q_L^T N Q_R / (\sqrt{V / (1 - \beta^t)} + \epsilon) \right) Q_R^T \\
        w &\leftarrow (1 - \eta\lambda) w - 0.2 \, \eta \sqrt{\max(A, B)} \, \mathrm{NS}(U) \\
        L &\leftarrow \beta L + (1 - \beta) G G^T, \qquad R \leftarrow \beta R + (1 - \beta) G^T G

    with Q the eigenvectors of L and R, turned every ``every`` steps by the QR decomposition of L Q
    and R Q, NS the orthogonal factor by Newton-Schulz iteration, and (A, B) the shape of the
    matrix. The first step fills L and R and moves nothing, as in SOAP.

    References:
        Vyas et al., SOAP (2024), arXiv 2409.11321, and Jordan et al., Muon (2024), one after the
        other, as in the records of https://github.com/KellerJordan/modded-nanogpt (2026).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        beta: float = 0.95,
        every: int = 10,
        eps: float = 1e-8,
    ) -> None:
        more = {"momentum": momentum, "beta": beta, "every": every, "eps": eps}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **more})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            moved = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                gradient = p.grad.reshape(p.shape[0], -1)
                if (direction := self._direction(self.state[p], gradient, group)) is not None:
                    matrix = p.detach().reshape(gradient.shape)
                    matrix.grad = direction
                    moved.append((p, matrix))
            _orthogonal_step(moved, group)

    def _direction(
        self, state: dict[str, Any], gradient: Tensor, group: dict[str, Any]
    ) -> Tensor | None:
        """Return the matrices to orthogonalise; None in the first step."""
        if not state:
            state["step"] = 0
            state["momentum_buffer"] = torch.zeros_like(gradient)
            state["second"] = torch.zeros_like(gradient)
            for side, seen in _covariances(gradient).items():
                state[side], state[f"{side}_basis"] = seen, torch.linalg.eigh(seen)[1]
            return None
        state["step"] += 1
        momentum, beta = group["momentum"], group["beta"]
        left, right = state["left_basis"], state["right_basis"]
        average = state["momentum_buffer"].lerp_(gradient, 1.0 - momentum)
        second = state["second"].lerp_((left.T @ gradient @ right).square(), 1.0 - beta)
        ahead = left.T @ torch.lerp(gradient, average, momentum) @ right
        root = (second / (1.0 - beta ** state["step"])).sqrt() + group["eps"]
        direction = left @ (ahead / root) @ right.T
        for side, seen in _covariances(gradient).items():
            state[side].lerp_(seen, 1.0 - beta)
            if state["step"] % group["every"] == 0:
                turned = state[side] @ state[f"{side}_basis"]
                state[f"{side}_basis"] = torch.linalg.qr(turned)[0]
        return direction


def _covariances(gradient: Tensor) -> dict[str, Tensor]:
    return {"left": gradient @ gradient.T, "right": gradient.T @ gradient}


def _orthogonal_step(moved: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
    """Return Muon's update for the gradients of these matrices, without momentum."""
    if not moved:
        return
    inner = torch.optim.Muon(
        [matrix for _, matrix in moved],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        momentum=0.0,
        nesterov=False,
        adjust_lr_fn="match_rms_adamw",
    )
    inner.step()
    put_back(moved)
