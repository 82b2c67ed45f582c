"""The engine around each full step of a training loop, and a trainer with a loop of its own."""

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
