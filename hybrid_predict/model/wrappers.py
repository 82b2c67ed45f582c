"""What wraps a model, and the names of its parameters without what wrappers add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from hybrid_predict.errors import UnsupportedSetupError

DEEPSPEED = (
    "DeepSpeed divides weights among ranks or updates copies of them. Use DistributedDataParallel, "
    "or shard the model with torch.distributed.fsdp.fully_shard (in a Lightning Trainer, with "
    "ModelParallelStrategy)."
)
"""Remedy for models and optimizers of DeepSpeed."""


def of_deepspeed(given: Any) -> bool:
    """Return whether a model or optimizer belongs to DeepSpeed."""
    names = [f"{cls.__module__}.{cls.__name__}" for cls in type(given).__mro__]
    return any(name.startswith("deepspeed.") or "DeepSpeedEngine" in name for name in names)


def unwrapped(model: Any) -> Any:
    """Return the module that ``DistributedDataParallel`` wraps, or the model as is.

    Raises:
        UnsupportedSetupError: If the model is an engine of DeepSpeed.
    """
    if of_deepspeed(model):
        raise UnsupportedSetupError("model", "a torch module", type(model).__name__, DEEPSPEED)
    wrapped = type(model).__name__ == "DistributedDataParallel"
    return model.module if wrapped else model


def clean(name: str) -> str:
    """Return a name without the parts that FSDP1 adds."""
    return name.replace("_fsdp_wrapped_module.", "")


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model as if nothing was wrapped."""
    return ((clean(name), p) for name, p in model.named_parameters())
