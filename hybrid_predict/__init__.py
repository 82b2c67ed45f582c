"""Finish training runs in fewer full steps: corrected updates, and predicted steps between them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict.accounts.clock import Phase
from hybrid_predict.accounts.ledger import SavingsLedger
from hybrid_predict.config import HybridConfig
from hybrid_predict.engine import (
    HybridEngine,
    HybridTrainer,
    StepRecord,
    StepResult,
    TorchModel,
    TrainableModel,
)
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
from hybrid_predict.model.deltas import WeightDelta
from hybrid_predict.model.gradients import GradientInfo
from hybrid_predict.model.optimizer import OptimizerWrapper
from hybrid_predict.model.parameters import ParameterMapper
from hybrid_predict.updates import SpectralUpdate
from hybrid_predict.verify.judge import Verdict

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditConfig as AuditConfig
    from hybrid_predict.audit import plan_audit as plan_audit
    from hybrid_predict.integrations.lightning import HybridPredict as HybridPredict

__version__ = "0.2.0.dev0"


def _map_integrations() -> None:
    """Let the folder beside an uninstalled package be its subpackage ``integrations``.

    The source tree comes first on ``sys.path`` in the root of a checkout and hides an installed
    package, whose ``integrations`` would be inside it.
    """
    name, inside = f"{__name__}.integrations", Path(__file__).with_name("integrations")
    beside = Path(__file__).parents[1] / "integrations"
    if name in sys.modules or inside.exists() or not (beside / "__init__.py").exists():
        return
    spec = spec_from_file_location(
        name, beside / "__init__.py", submodule_search_locations=[str(beside)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


_map_integrations()

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
    "__version__",
    "plan_audit",
]

_LAZY = {
    "AuditConfig": "hybrid_predict.audit",
    "HybridPredict": "hybrid_predict.integrations.lightning",
    "plan_audit": "hybrid_predict.audit",
}


def __getattr__(name: str) -> Any:
    """Import what needs an extra, or much time, when it is first asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
