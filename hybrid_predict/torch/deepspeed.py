"""DeepSpeed: the model inside its engine, if it is the model's own weights that are updated."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hybrid_predict.errors import UnsupportedSetupError

_EXPECTED = "ZeRO stage 0 without bf16 and fp16, where DeepSpeed updates the model's own weights"
_COPIES = (
    "Here DeepSpeed's optimizer updates float32 copies of the weights. What is written into these "
    "copies reaches the model only with the next update, so predicted steps cannot be taken."
)
_DDP = "Use DistributedDataParallel, which divides the work of correcting among the ranks."
_FSDP2 = (
    "Shard the model with torch.distributed.fsdp.fully_shard (in a Lightning Trainer, with "
    "ModelParallelStrategy)."
)
_FLOAT32 = (
    "Give deepspeed.initialize a torch optimizer, leave bf16 and fp16 out, and set torch_autocast "
    "to compute in half precision."
)
_EITHER = f"{_COPIES} {_DDP} Or: {_FSDP2}"
_MARKS = ("ds_id", "_hp_mapping")
"""Attributes of parameters of which an optimizer of DeepSpeed updates copies."""


def is_engine(model: Any) -> bool:
    """Return whether a model is an engine of DeepSpeed."""
    return "DeepSpeedEngine" in _class_names(model)


def inner(engine: Any) -> Any:
    """Return the model inside an engine of DeepSpeed.

    Raises:
        UnsupportedSetupError: For ZeRO stages 1 to 3, weights in half precision, and pipelines.
    """
    if "PipelineEngine" in _class_names(engine):
        remedy = f"It trains in one call, and each rank has layers of its own. {_FSDP2}"
        raise UnsupportedSetupError("model", _EXPECTED, "PipelineEngine", remedy)
    if isinstance(engine.optimizer, Optimizer):
        return engine.module
    stage, name = engine.zero_optimization_stage(), type(engine.optimizer).__name__
    nearest = {0: _FLOAT32, 1: _DDP}.get(stage, _FSDP2)
    raise UnsupportedSetupError(
        "model", _EXPECTED, f"ZeRO stage {stage} with {name}", f"{_COPIES} {nearest}"
    )


def check_parameter(name: str, p: Tensor) -> None:
    """Check that no optimizer of DeepSpeed updates a copy of a parameter.

    Raises:
        UnsupportedSetupError: If one does.
    """
    if any(hasattr(p, mark) for mark in _MARKS):
        raise UnsupportedSetupError("model", _EXPECTED, name, _EITHER)


def remedy(optimizer: Any) -> str:
    """Return what to do in place of passing an optimizer of DeepSpeed; "" for other optimizers."""
    return _EITHER if type(optimizer).__module__.startswith("deepspeed.") else ""


def _class_names(model: Any) -> list[str]:
    return [cls.__name__ for cls in type(model).__mro__]
