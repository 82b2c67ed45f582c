"""Checks that one's own predictor, horizon rule or backend keeps its contract.

They need neither pytest nor data, take well below a second, and raise a
:class:`~hybrid_predict.errors.ContractError` that says which promise is broken.
"""

from hybrid_predict.testing.backends import BackendUnderTest, check_backend
from hybrid_predict.testing.horizons import check_horizon
from hybrid_predict.testing.predictors import check_predictor

__all__ = ["BackendUnderTest", "check_backend", "check_horizon", "check_predictor"]
