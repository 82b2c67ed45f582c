"""Train neural networks in fewer full steps by forecasting where their weights are going."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hybrid_predict.checkout import map_integrations
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
    UnsupportedSetupError,
    UsageError,
)
from hybrid_predict.horizons import AlignmentHorizon, FixedHorizon
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import ParameterMapper, WeightDelta
from hybrid_predict.phases import Phase
from hybrid_predict.predictors import LinearPredictor, MomentumPredictor, SpectralPredictor
from hybrid_predict.trainer import HybridTrainer, StepResult, TorchModel, TrainableModel
from hybrid_predict.verification import Verdict
from hybrid_predict.window import StepRecord

if TYPE_CHECKING:
    from hybrid_predict.auditing import AuditConfig as AuditConfig
    from hybrid_predict.auditing import audit as audit
    from hybrid_predict.auditing import plan_audit as plan_audit
    from hybrid_predict.integrations.lightning import HybridPredict as HybridPredict

__version__ = "0.1.0"

map_integrations(__name__, __file__)

__all__ = [
    "AlignmentHorizon",
    "AuditConfig",
    "CheckpointError",
    "ConfigError",
    "ContractError",
    "FixedHorizon",
    "HybridConfig",
    "HybridEngine",
    "HybridPredictError",
    "HybridTrainer",
    "LinearPredictor",
    "MissingExtraError",
    "MomentumPredictor",
    "OptimizerWrapper",
    "ParameterMapper",
    "Phase",
    "PredictorError",
    "RankError",
    "SavingsLedger",
    "SpectralPredictor",
    "StepRecord",
    "StepResult",
    "TorchModel",
    "TrainableModel",
    "UnsupportedSetupError",
    "UsageError",
    "Verdict",
    "WeightDelta",
    "__version__",
    "audit",
    "plan_audit",
]

_LAZY = {
    "AuditConfig": "hybrid_predict.auditing",
    "HybridPredict": "hybrid_predict.integrations.lightning",
    "audit": "hybrid_predict.auditing",
    "plan_audit": "hybrid_predict.auditing",
}


def __getattr__(name: str) -> Any:
    """Import what needs an extra, or much time, when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
