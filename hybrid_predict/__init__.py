"""Finish training runs in fewer full steps, by corrected updates and predicted steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig as AuditConfig
    from hybrid_predict.audit import plan_audit as plan_audit
    from hybrid_predict.config import HybridConfig
    from hybrid_predict.engine import HybridEngine
    from hybrid_predict.errors import (
        CheckpointError,
        ConfigError,
        ContractError,
        HybridPredictError,
        MissingExtraError,
        PredictorError,
        RankError,
        RecoveryAction,
        UnsupportedSetupError,
        UsageError,
    )
    from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor
    from hybrid_predict.integrations.lightning import HybridPredict as HybridPredict
    from hybrid_predict.ledger import SavingsLedger
    from hybrid_predict.record import StepRecord
    from hybrid_predict.rules.schedule import Phase
    from hybrid_predict.rules.verdict import Verdict
    from hybrid_predict.torch.deltas import WeightDelta
    from hybrid_predict.torch.gradients import GradientInfo
    from hybrid_predict.torch.optimizer import OptimizerWrapper
    from hybrid_predict.torch.parameters import ParameterMapper
    from hybrid_predict.trainer import HybridTrainer, StepResult, TorchModel, TrainableModel
    from hybrid_predict.updates import SpectralUpdate, WhitenedUpdate

__version__ = "0.2.0.dev0"

__all__ = [
    "AuditConfig",
    "CheckpointError",
    "ConfigError",
    "ContractError",
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
    "RankError",
    "RecoveryAction",
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
    "WhitenedUpdate",
    "__version__",
    "plan_audit",
]

_HOMES = {
    "AuditConfig": "hybrid_predict.audit",
    "CheckpointError": "hybrid_predict.errors",
    "ConfigError": "hybrid_predict.errors",
    "ContractError": "hybrid_predict.errors",
    "FittedPredictor": "hybrid_predict.forecast.predictors",
    "GradientInfo": "hybrid_predict.torch.gradients",
    "HybridConfig": "hybrid_predict.config",
    "HybridEngine": "hybrid_predict.engine",
    "HybridPredict": "hybrid_predict.integrations.lightning",
    "HybridPredictError": "hybrid_predict.errors",
    "HybridTrainer": "hybrid_predict.trainer",
    "MissingExtraError": "hybrid_predict.errors",
    "MomentumPredictor": "hybrid_predict.forecast.predictors",
    "OptimizerWrapper": "hybrid_predict.torch.optimizer",
    "ParameterMapper": "hybrid_predict.torch.parameters",
    "Phase": "hybrid_predict.rules.schedule",
    "PredictorError": "hybrid_predict.errors",
    "RankError": "hybrid_predict.errors",
    "RecoveryAction": "hybrid_predict.errors",
    "SavingsLedger": "hybrid_predict.ledger",
    "SpectralUpdate": "hybrid_predict.updates",
    "StepRecord": "hybrid_predict.record",
    "StepResult": "hybrid_predict.trainer",
    "TorchModel": "hybrid_predict.trainer",
    "TrainableModel": "hybrid_predict.trainer",
    "UnsupportedSetupError": "hybrid_predict.errors",
    "UsageError": "hybrid_predict.errors",
    "Verdict": "hybrid_predict.rules.verdict",
    "WeightDelta": "hybrid_predict.torch.deltas",
    "WhitenedUpdate": "hybrid_predict.updates",
    "plan_audit": "hybrid_predict.audit",
}
"""Module that defines each public name; it is imported on first access, since torch is slow."""


_FOLDERS = {home.split(".")[1] for home in _HOMES.values()}


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module that defines one, on first access."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name in _FOLDERS:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
