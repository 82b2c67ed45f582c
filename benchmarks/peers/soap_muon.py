"""SOAP-Muon: momentum, divided by second moments in the eigenbasis, then orthogonalised."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from benchmarks.peers.matrices import MatrixOptimizer, put_back
from hybrid_predict.errors import ConfigError


class SOAPMuon(MatrixOptimizer):
    r"""Muon on the momentum as SOAP preconditions it; kernels are read as (output, rest).

    .. math::
        M &\leftarrow \mu M + (1 - \mu) G, \qquad N = \mu M + (1 - \mu) G \\
        V &\leftarrow \beta V + (1 - \beta) (Q_L^T G Q_R)^2 \\
        U &= Q_L \left( Q_L^T N Q_R / (\sqrt{V / (1 - \beta^t)} + \epsilon) \right) Q_R^T \\
        w &\leftarrow (1 - \eta\lambda) w - 0.2 \, \eta \sqrt{\max(A, B)} \, \mathrm{NS}(U) \\
        L &\leftarrow \beta L + (1 - \beta) G G^T, \qquad R \leftarrow \beta R + (1 - \beta) G^T G

    with Q the eigenvectors of L and R, turned every few steps by the QR decomposition of L Q and
    R Q, NS the orthogonal factor by Newton-Schulz iteration, and (A, B) the shape of the matrix.
    The first step fills L and R and moves nothing, as in SOAP.

    Args:
        params: Parameters of at least two dimensions, or groups of them.
        lr: Learning rate :math:`\eta`.
        weight_decay: Decoupled weight decay :math:`\lambda`.
        momentum: :math:`\mu`, dimensionless.
        beta: :math:`\beta`, decay of second moments and covariances, in [0, 1).
        every: Steps between two turns of the bases, at least 1.
        eps: Added to the root of second moments.

    Raises:
        ConfigError: If an argument is out of range.
        ConfigError: If a parameter has fewer than two dimensions.
        UnsupportedSetupError: If torch has no Muon.

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
        if not 0.0 <= beta < 1.0:
            raise ConfigError("beta", "a number in [0, 1)", beta)
        if not isinstance(every, int) or every < 1:
            raise ConfigError("every", "an integer, at least 1", every)
        own = {"momentum": momentum, "beta": beta, "every": every, "eps": eps}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **own})

    def _update(self) -> None:
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
