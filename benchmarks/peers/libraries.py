"""Peers from packages: other directions, averages, and learning rates that tune themselves."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from hybrid_predict.errors import MissingExtraError


def normuon(params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
    r"""NorMuon: orthogonalised momentum whose rows are levelled by their own second moments.

    .. math::
        v \leftarrow \beta_2 v + (1 - \beta_2) \, \mathrm{mean}_j O_{ij}^2, \qquad
        \hat O = O / (\sqrt{v} + \epsilon), \qquad
        w \leftarrow (1 - \eta\lambda) w - 0.2 \, \eta \sqrt{mn} \, \hat O / \lVert\hat O\rVert

    with O Muon's direction. Kernels are read as matrices of shape (output, rest).

    References:
        Li et al., NorMuon: Making Muon more efficient and scalable (2025), arXiv 2510.05491.
    """
    group = {"params": list(params), "lr": lr, "weight_decay": weight_decay, "use_muon": True}
    return _made("NorMuon", [group], momentum=0.95, beta2=0.95, update_scale="match_rms")


def soap(params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
    """SOAP: Adam in the eigenbases of the gradients' covariances, turned every ten steps.

    As in the authors' code, the first step fills the covariances and moves nothing, and every
    dimension of a kernel has its own basis.

    References:
        Vyas et al., SOAP: Improving and Stabilizing Shampoo using Adam (2024), arXiv 2409.11321.
    """
    options = {"betas": (0.95, 0.95), "precondition_frequency": 10}
    return _made("SOAP", list(params), lr=lr, weight_decay=weight_decay, **options)


def schedule_free(
    params: ParamsT,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """Schedule-Free AdamW, ready to train; it has ``eval()`` and a warm-up of its own.

    References:
        Defazio et al., The Road Less Scheduled (2024).
    """
    make = _library("schedulefree", "Schedule-Free AdamW").AdamWScheduleFree
    optimizer: Optimizer = make(
        params, lr=lr, betas=betas, weight_decay=weight_decay, warmup_steps=warmup_steps
    )
    optimizer.train()  # type: ignore[attr-defined]
    return optimizer


def prodigy(params: Iterable[Tensor], lr: float, **options: Any) -> Optimizer:
    """Prodigy: AdamW that estimates the distance to the solution, and from it its learning rate.

    References:
        Mishchenko and Defazio, Prodigy: An Expeditiously Adaptive Parameter-Free Learner (2023).
    """
    return _made("Prodigy", list(params), lr=lr, **options)


def d_adapt_adam(params: Iterable[Tensor], lr: float, **options: Any) -> Optimizer:
    """D-Adaptation over AdamW.

    References:
        Defazio and Mishchenko, Learning-Rate-Free Learning by D-Adaptation (2023).
    """
    return _made("DAdaptAdam", list(params), lr=lr, weight_decouple=True, **options)


def mechanic(params: Iterable[Tensor], lr: float, **options: Any) -> Optimizer:
    """Mechanic over AdamW: learns a factor on the whole movement since the first step.

    References:
        Cutkosky, Defazio and Mehta, Mechanic: A Learning Rate Tuner (2023).
    """
    mechanize = _library("mechanic_pytorch", "Mechanic").mechanize
    optimizer: Optimizer = mechanize(torch.optim.AdamW)(list(params), lr=lr, **options)
    return optimizer


def _made(name: str, params: list[Any], **options: Any) -> Optimizer:
    optimizer: Optimizer = getattr(_library("pytorch_optimizer", name), name)(params, **options)
    return optimizer


def _library(package: str, peer: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError(peer, "bench") from error
