"""Schedule-Free AdamW, from its authors' package."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from hybrid_predict.errors import MissingExtraError


def schedule_free(
    params: ParamsT,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
) -> Optimizer:
    """``schedulefree.AdamWScheduleFree``, ready to train.

    It has ``eval()`` and ``train()``, and needs no learning-rate scheduler beside its own warm-up.

    Args:
        params: Parameters, or groups of them, as any optimizer takes.
        lr: Learning rate.
        betas: Interpolation and second-moment coefficients.
        weight_decay: Decoupled weight decay.
        warmup_steps: Updates over which the learning rate rises linearly.

    Raises:
        MissingExtraError: If ``schedulefree`` is not installed.

    References:
        Defazio et al., The Road Less Scheduled (2024).
    """
    try:
        from schedulefree import AdamWScheduleFree  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("Schedule-Free AdamW", "bench") from error
    optimizer: Optimizer = AdamWScheduleFree(
        params, lr=lr, betas=betas, weight_decay=weight_decay, warmup_steps=warmup_steps
    )
    optimizer.train()  # type: ignore[attr-defined]
    return optimizer
