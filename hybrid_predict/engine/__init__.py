"""The engine: what happens before and after a full step, and the loop that owns one."""

from hybrid_predict.engine.engine import HybridEngine
from hybrid_predict.engine.record import StepRecord
from hybrid_predict.engine.trainer import HybridTrainer, StepResult, TorchModel, TrainableModel

__all__ = [
    "HybridEngine",
    "HybridTrainer",
    "StepRecord",
    "StepResult",
    "TorchModel",
    "TrainableModel",
]
