"""Finish training runs in fewer full steps, by corrected updates and predicted steps."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_predict.config import HybridConfig as HybridConfig
    from hybrid_predict.engine import HybridEngine as HybridEngine
    from hybrid_predict.forecast.predictors import FittedPredictor as FittedPredictor
    from hybrid_predict.forecast.predictors import MomentumPredictor as MomentumPredictor
    from hybrid_predict.integrations.lightning import HybridPredict as HybridPredict
    from hybrid_predict.ledger import GradientInfo as GradientInfo
    from hybrid_predict.ledger import SavingsLedger as SavingsLedger
    from hybrid_predict.ledger import StepRecord as StepRecord
    from hybrid_predict.model.parameters import ParameterMapper as ParameterMapper
    from hybrid_predict.optimizers.wrapper import OptimizerWrapper as OptimizerWrapper
    from hybrid_predict.policy.verdict import Verdict as Verdict
    from hybrid_predict.tensors.deltas import WeightDelta as WeightDelta
    from hybrid_predict.trainer import HybridTrainer as HybridTrainer
    from hybrid_predict.trainer import StepResult as StepResult
    from hybrid_predict.trainer import TorchModel as TorchModel
    from hybrid_predict.trainer import TrainableModel as TrainableModel
    from hybrid_predict.updates import SpectralUpdate as SpectralUpdate

__version__ = "0.3.0.dev0"

_PUBLIC = {
    "config": "HybridConfig",
    "engine": "HybridEngine",
    "forecast.predictors": "FittedPredictor MomentumPredictor",
    "integrations.lightning": "HybridPredict",
    "ledger": "GradientInfo SavingsLedger StepRecord",
    "model.parameters": "ParameterMapper",
    "optimizers.wrapper": "OptimizerWrapper",
    "policy.verdict": "Verdict",
    "tensors.deltas": "WeightDelta",
    "trainer": "HybridTrainer StepResult TorchModel TrainableModel",
    "updates": "SpectralUpdate",
}
"""Public names by module, which is imported on first access: those of the functional form need no
torch, and runs with ``speedup=1`` no forecasts."""

_FORMER = {
    "audit": "AuditConfig plan_audit",
    "errors": "CheckpointError ConfigError HybridPredictError MissingExtraError PredictorError "
    "UnsupportedSetupError UsageError",
    "ledger": "Phase",
}
"""Names that used to be public here; programs of earlier versions still find them."""


def _by_name(modules: dict[str, str]) -> dict[str, str]:
    return {name: module for module, names in modules.items() for name in names.split()}


_HOMES = _by_name(_PUBLIC)

# Without HybridPredict, for which an import of everything would need Lightning.
__all__ = ["__version__", *(name for name in _HOMES if name != "HybridPredict")]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a module that defines one, on first access."""
        modules = _HOMES | _by_name(_FORMER)
        if name in modules:
            return getattr(import_module(f"{__name__}.{modules[name]}"), name)
        if name in {module.partition(".")[0] for module in modules.values()}:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
