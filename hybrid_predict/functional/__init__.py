"""The three mechanisms as functions of named arrays of NumPy or JAX; torch is not imported."""

from hybrid_predict.functional.steps import HybridState, correct, init, predict, verify

__all__ = ["HybridState", "correct", "init", "predict", "verify"]
