"""Finish training runs in fewer full steps, by corrected updates and predicted steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig as AuditConfig
    from hybrid_predict.audit import plan_audit as plan_audit
    from hybrid_predict.config import HybridConfig as HybridConfig
    from hybrid_predict.engine import HybridEngine as HybridEngine
    from hybrid_predict.errors import CheckpointError as CheckpointError
    from hybrid_predict.errors import ConfigError as ConfigError
    from hybrid_predict.errors import HybridPredictError as HybridPredictError
    from hybrid_predict.errors import MissingExtraError as MissingExtraError
    from hybrid_predict.errors import PredictorError as PredictorError
    from hybrid_predict.errors import UnsupportedSetupError as UnsupportedSetupError
    from hybrid_predict.errors import UsageError as UsageError
    from hybrid_predict.forecast.predictors import FittedPredictor as FittedPredictor
    from hybrid_predict.forecast.predictors import MomentumPredictor as MomentumPredictor
    from hybrid_predict.integrations.lightning import HybridPredict as HybridPredict
    from hybrid_predict.ledger import SavingsLedger as SavingsLedger
    from hybrid_predict.record import StepRecord as StepRecord
    from hybrid_predict.rules.schedule import Phase as Phase
    from hybrid_predict.rules.verdict import Verdict as Verdict
    from hybrid_predict.torch.deltas import WeightDelta as WeightDelta
    from hybrid_predict.torch.gradients import GradientInfo as GradientInfo
    from hybrid_predict.torch.optimizer import OptimizerWrapper as OptimizerWrapper
    from hybrid_predict.torch.parameters import ParameterMapper as ParameterMapper
    from hybrid_predict.trainer import HybridTrainer as HybridTrainer
    from hybrid_predict.trainer import StepResult as StepResult
    from hybrid_predict.trainer import TorchModel as TorchModel
    from hybrid_predict.trainer import TrainableModel as TrainableModel
    from hybrid_predict.updates import SpectralUpdate as SpectralUpdate

__version__ = "0.2.0.dev0"

_NAMES = {
    "audit": ("AuditConfig", "plan_audit"),
    "config": ("HybridConfig",),
    "engine": ("HybridEngine",),
    "errors": (
        "CheckpointError",
        "ConfigError",
        "HybridPredictError",
        "MissingExtraError",
        "PredictorError",
        "UnsupportedSetupError",
        "UsageError",
    ),
    "forecast.predictors": ("FittedPredictor", "MomentumPredictor"),
    "integrations.lightning": ("HybridPredict",),
    "ledger": ("SavingsLedger",),
    "record": ("StepRecord",),
    "rules.schedule": ("Phase",),
    "rules.verdict": ("Verdict",),
    "torch.deltas": ("WeightDelta",),
    "torch.gradients": ("GradientInfo",),
    "torch.optimizer": ("OptimizerWrapper",),
    "torch.parameters": ("ParameterMapper",),
    "trainer": ("HybridTrainer", "StepResult", "TorchModel", "TrainableModel"),
    "updates": ("SpectralUpdate",),
}
"""Public names by the module that defines them; it is imported on first access, since torch is
slow."""

_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

# Without HybridPredict, for which an import of everything would need Lightning.
__all__ = [
    "AuditConfig",
    "CheckpointError",
    "ConfigError",
    "FittedPredictor",
    "GradientInfo",
    "HybridConfig",
    "HybridEngine",
    "HybridPredictError",
    "HybridTrainer",
    "MissingExtraError",
    "MomentumPredictor",
    "OptimizerWrapper",
    "ParameterMapper",
    "Phase",
    "PredictorError",
    "SavingsLedger",
    "SpectralUpdate",
    "StepRecord",
    "StepResult",
    "TorchModel",
    "TrainableModel",
    "UnsupportedSetupError",
    "UsageError",
    "Verdict",
    "WeightDelta",
    "__version__",
    "plan_audit",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module that defines one, on first access."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name in {home.split(".")[0] for home in _NAMES}:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
