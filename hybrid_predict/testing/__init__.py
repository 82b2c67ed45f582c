"""Checks for third parties: whether a predictor, update or array library keeps its contract.

They need neither pytest nor data, take well below a second, and raise a
:class:`~hybrid_predict.errors.ContractError` that says which promise is broken.
"""

from hybrid_predict.testing.backends import BackendUnderTest, check_backend
from hybrid_predict.testing.placebos import check_placebos
from hybrid_predict.testing.predictors import check_predictor
from hybrid_predict.testing.updates import check_update

__all__ = ["BackendUnderTest", "check_backend", "check_placebos", "check_predictor", "check_update"]
