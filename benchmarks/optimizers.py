"""Optimizers of the arms: AdamW, and published peers of the plug-in for the hidden matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from benchmarks.tasks import Recipe
from hybrid_predict.model.kinds import classify


class Rates(NamedTuple):
    """Learning rate of all parameters, and its factor for the hidden matrices."""

    base: float
    hidden: float = 1.0

    def times(self, what: str, factor: float) -> Rates:
        """Return rates with ``what``, ``base`` or ``hidden``, multiplied by a factor."""
        return self._replace(**{what: getattr(self, what) * factor})


Build = Callable[[nn.Module, Recipe, Rates, int], list[Optimizer]]
"""Function from model, recipe, rates and steps of the schedule to optimizers."""


def adamw(
    model: nn.Module, recipe: Recipe, rates: Rates, updates: int, *, beta1: float | None = None
) -> list[Optimizer]:
    """Return AdamW with the hidden matrices in a group of their own."""
    betas = (beta1 or recipe.betas[0], recipe.betas[1])
    hidden, rest = hidden_and_rest(model)
    groups = [
        {"params": members, "lr": rate}
        for members, rate in ((rest, rates.base), (hidden, rates.base * rates.hidden))
        if members
    ]
    return [AdamW(groups, betas=betas, weight_decay=recipe.weight_decay, fused=True)]


def _for_hidden(make: Callable[..., Optimizer]) -> Build:
    """Make a peer for the hidden matrices, and AdamW for the rest if there is any."""

    def build(model: nn.Module, recipe: Recipe, rates: Rates, updates: int) -> list[Optimizer]:
        hidden, rest = hidden_and_rest(model)
        peer = make(hidden, lr=rates.base * rates.hidden, weight_decay=recipe.weight_decay)
        if not rest:
            return [peer]
        decay = recipe.weight_decay
        adam = AdamW(rest, lr=rates.base, betas=recipe.betas, weight_decay=decay, fused=True)
        return [peer, adam]

    build.__qualname__ = make.__name__  # committed runs have a digest of it
    return build


class Muon(Optimizer):
    r"""``torch.optim.Muon``, with convolution kernels read as matrices of shape (output, rest).

    .. math::
        B \leftarrow \mu B + (1 - \mu) g, \qquad
        w \leftarrow (1 - \eta\lambda) w - \eta \, r \, \mathrm{NS}((1 - \mu) g + \mu B)

    with NS the orthogonal factor by Newton-Schulz iteration and r the factor of ``adjust_lr_fn``.

    References:
        Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024); Liu et al.,
        Muon is Scalable for LLM Training (2025) for ``match_rms_adamw``.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.1, **options: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._parameters = [p for group in self.param_groups for p in group["params"]]
        self._matrices = [p.detach().flatten(1) for p in self._parameters]
        self._inner = torch.optim.Muon(self._matrices, weight_decay=weight_decay, **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        for p, matrix in zip(self._parameters, self._matrices, strict=True):
            matrix.grad = None if p.grad is None else self._direction(p, p.grad.flatten(1))
        self._inner.step()

    def _direction(self, p: Tensor, gradient: Tensor) -> Tensor | None:
        """Return what stands for the gradient of a matrix; None moves nothing."""
        return gradient


class SOAPMuon(Muon):
    r"""Muon on the momentum as SOAP preconditions it; kernels are read as (output, rest).

    .. math::
        M &\leftarrow \mu M + (1 - \mu) G, \qquad N = \mu M + (1 - \mu) G \\
        V &\leftarrow \mu V + (1 - \mu) (Q_L^T G Q_R)^2 \\
        U &= Q_L \left( Q_L^T N Q_R / (\sqrt{V / (1 - \mu^t)} + \epsilon) \right) Q_R^T \\
        w &\leftarrow (1 - \eta\lambda) w - 0.2 \, \eta \sqrt{\max(A, B)} \, \mathrm{NS}(U) \\
        L &\leftarrow \mu L + (1 - \mu) G G^T, \qquad R \leftarrow \mu R + (1 - \mu) G^T G

    with Q the eigenvectors of L and R, turned every tenth step by the QR decomposition of L Q
    and R Q, NS the orthogonal factor by Newton-Schulz iteration, and (A, B) the shape of the
    matrix. The first step fills L and R and moves nothing, as in SOAP.

    References:
        Vyas et al., SOAP (2024), arXiv 2409.11321, and Jordan et al., Muon (2024), one after the
        other, as in the records of https://github.com/KellerJordan/modded-nanogpt (2026).
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        every: int = 10,
    ) -> None:
        shared: dict[str, Any] = {"momentum": 0.0, "nesterov": False}
        super().__init__(params, lr, weight_decay, adjust_lr_fn="match_rms_adamw", **shared)
        self._momentum = momentum
        self._every = every

    def _direction(self, p: Tensor, gradient: Tensor) -> Tensor | None:
        state = self.state[p]
        seen = {"left": gradient @ gradient.T, "right": gradient.T @ gradient}
        if not state:
            state["step"] = 0
            state["average"] = torch.zeros_like(gradient)
            state["second"] = torch.zeros_like(gradient)
            for side, covariance in seen.items():
                state[side] = covariance
                state[f"{side}_basis"] = torch.linalg.eigh(covariance)[1]
            return None
        state["step"] += 1
        new = 1.0 - self._momentum
        left = state["left_basis"]
        right = state["right_basis"]
        average = state["average"].lerp_(gradient, new)
        second = state["second"].lerp_((left.T @ gradient @ right).square(), new)
        ahead = left.T @ torch.lerp(gradient, average, self._momentum) @ right
        root = (second / (1.0 - self._momentum ** state["step"])).sqrt() + 1e-8
        direction: Tensor = left @ (ahead / root) @ right.T
        for side, covariance in seen.items():
            state[side].lerp_(covariance, new)
            if state["step"] % self._every == 0:
                turned = state[side] @ state[f"{side}_basis"]
                state[f"{side}_basis"] = torch.linalg.qr(turned)[0]
        return direction


@_for_hidden
def muon(params: Iterable[Tensor], **options: Any) -> Optimizer:
    """Muon with updates as long as those of AdamW."""
    return Muon(params, adjust_lr_fn="match_rms_adamw", **options)


@_for_hidden
def soap_muon(params: Iterable[Tensor], **options: Any) -> Optimizer:
    """Muon on the momentum as SOAP preconditions it."""
    return SOAPMuon(params, **options)


@_for_hidden
def normuon(params: Iterable[Tensor], lr: float, **options: Any) -> Optimizer:
    """NorMuon: rows levelled by their second moments (Li et al., 2025, arXiv 2510.05491)."""
    from pytorch_optimizer import NorMuon

    groups = [{"params": list(params), "lr": lr, "use_muon": True, **options}]
    return NorMuon(groups, lr, momentum=0.95, beta2=0.95, update_scale="match_rms")


@_for_hidden
def soap(params: Iterable[Tensor], lr: float, **options: Any) -> Optimizer:
    """SOAP (Vyas et al., 2024, arXiv 2409.11321); its first step moves nothing, as the authors'."""
    from pytorch_optimizer import SOAP

    fixed: Any = {"betas": (0.95, 0.95), "precondition_frequency": 10}
    return SOAP(list(params), lr, **fixed, **options)


def hidden_and_rest(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return the trained hidden matrices, and the other trained parameters."""
    kinds = known_kinds(model)
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    hidden: list[Tensor] = [p for name, p in wanted.items() if kinds[name] == "hidden"]
    return hidden, [p for name, p in wanted.items() if kinds[name] != "hidden"]


def known_kinds(model: nn.Module) -> dict[str, str]:
    """Return the kinds of a task's parameters by name, without a loss that shows them."""
    named = dict(model.named_parameters())
    kinds = classify(model)
    told: Mapping[str, str] = getattr(model, "kinds", {})
    found = {}
    for name, p in named.items():
        patterns = [kind for pattern, kind in told.items() if fnmatchcase(name, pattern)]
        found[name] = patterns[0] if patterns and kinds[id(p)] != "vector" else kinds[id(p)]
    return found
