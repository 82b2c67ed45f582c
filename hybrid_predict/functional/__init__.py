"""The three mechanisms as pure functions of named arrays of NumPy or JAX; torch is not imported."""

from hybrid_predict.functional.arrays import Selection, select_backend
from hybrid_predict.functional.initial import init
from hybrid_predict.functional.plan import kinds
from hybrid_predict.functional.state import HybridState
from hybrid_predict.functional.steps import correct, predict, verify
from hybrid_predict.rules.numbers import select

__all__ = [
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
