"""Your own corrected update: a direction for hidden matrices.

Look at: direction, the one method that it needs. The callback applies weight decay, sets the length
of the update and writes it.

Run with: python examples/by_feature/own_update.py (about 10 seconds on one core)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from waves import train

from hybrid_predict import HybridPredict
from hybrid_predict.updates import AbstractUpdate, UpdateState


@dataclass(frozen=True, kw_only=True)
class RowUpdate(AbstractUpdate):
    """Moves against the averaged gradient, with all rows of equal length."""

    bound: float = 1.0

    def direction(
        self, state: UpdateState, members: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        directions = []
        for matrix in matrices:
            rows = torch.nn.functional.normalize(matrix.flatten(1), dim=1)
            directions.append(-(rows / rows.norm().clamp_min(1e-12)).view_as(matrix))
        return directions


def main() -> HybridPredict:
    callback = HybridPredict(updates={"hidden": RowUpdate()})
    trainer = train(callback)
    print(f"{callback.ledger}; loss {float(trainer.callback_metrics['train_loss']):.4f}")
    return callback


if __name__ == "__main__":
    main()
