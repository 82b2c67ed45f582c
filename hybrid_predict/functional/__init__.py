"""The three mechanisms as pure functions of named arrays: torch, JAX, NumPy, or another library."""

from hybrid_predict.functional.initial import init
from hybrid_predict.functional.places import OPERATIONS, Selection, select_backend
from hybrid_predict.functional.plan import kinds
from hybrid_predict.functional.state import HybridState, select
from hybrid_predict.functional.steps import correct, predict, verify

__all__ = [
    "OPERATIONS",
    "HybridState",
    "Selection",
    "correct",
    "init",
    "kinds",
    "predict",
    "select",
    "select_backend",
    "verify",
]
