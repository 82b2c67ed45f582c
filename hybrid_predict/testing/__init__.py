"""Checks for third parties: does a predictor or an update keep its contract?

They need neither pytest nor data, and take less than a second, except for :func:`check_placebos`. A
failed check raises a :class:`~hybrid_predict.errors.ContractError` that names the broken promise.
"""

from hybrid_predict.testing.placebos import check_placebos
from hybrid_predict.testing.predictors import check_predictor
from hybrid_predict.testing.updates import check_update

__all__ = ["check_placebos", "check_predictor", "check_update"]
