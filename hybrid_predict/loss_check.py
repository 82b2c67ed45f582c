"""When the loss check of the configuration is due, and what it costs."""

from __future__ import annotations

from torch import nn

from hybrid_predict.config import HybridConfig
from hybrid_predict.distributed import rank_zero_logger
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.parameters import ParameterMapper, WeightDelta
from hybrid_predict.verification import Evaluate, loss_rises

logger = rank_zero_logger(__name__)


class LossCheck:
    """Asks at every n-th forecast whether it raises the loss on the coming batch.

    Args:
        model: The model.
        mapper: Its parameters.
        config: ``loss_tolerance`` and ``loss_check_every``.
        ledger: Where forward passes are counted.
    """

    def __init__(
        self, model: nn.Module, mapper: ParameterMapper, config: HybridConfig, ledger: SavingsLedger
    ) -> None:
        self._model, self._mapper, self._ledger = model, mapper, ledger
        self._tolerance, self._every = config.loss_tolerance, config.loss_check_every

    def rises(self, step: int, delta: WeightDelta, evaluate: Evaluate | None) -> bool:
        """Whether the check is due and fails.

        Args:
            step: Number of the coming full step.
            delta: Its forecast.
            evaluate: Forward pass on its batch.
        """
        if self._tolerance is None or self._ledger.forecasts % self._every:
            return False
        if evaluate is None:
            reason = "loss_tolerance is set, but before_step() was given no forward pass"
            if self._ledger.record(step, reason):
                logger.warning("%s; the loss is not checked.", reason)
            return False
        self._ledger.forward_passes += 2
        return loss_rises(evaluate, self._model, self._mapper, delta, self._tolerance)
