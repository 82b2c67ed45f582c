"""The three mechanisms as functions of named arrays of NumPy or JAX; torch is not imported."""

from hybrid_predict.functional.arrays import Selection, select_backend
from hybrid_predict.functional.plan import kinds
from hybrid_predict.functional.steps import HybridState, correct, init, predict, verify

__all__ = [
    "HybridState",
    "Selection",
    "correct",
    "init",
    "kinds",
    "predict",
    "select_backend",
    "verify",
]
