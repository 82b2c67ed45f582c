"""There is one set of weights: who may see what, what is undone, and what user code does counts."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning_models import Net, Recorded, Ungated, fit, same, weights
from torch import Tensor
from witness import judged_losses

from hybrid_predict.errors import UnsupportedSetupError

MORE = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}


@pytest.mark.parametrize(
    ("mode", "options"),
    [({"enabled": False}, {}), ({"shadow": True}, MORE), ({"updates": {}, "speedup": 1}, MORE)],
    ids=str,
)
def test_switched_off_or_in_shadow_training_is_bit_identical(
    tmp_path: Path, mode: dict[str, Any], options: dict[str, Any]
) -> None:
    tables, ends = [], []
    for name, callbacks in (("plain", []), ("hybrid", [Ungated(**mode)])):
        logger = CSVLogger(tmp_path, name)
        trainer, model = fit(callbacks, max_steps=30, logger=logger, **options)
        logger.save()
        with Path(logger.log_dir, "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        users = [{k: v for k, v in row.items() if "hybrid_predict" not in k} for row in rows]
        tables.append([row for row in users if row["train_loss_step"] or row["val_loss"]])
        ends.append({**weights(model), "random state": torch.get_rng_state()})
        assert trainer.global_step == 30
    assert tables[0] == tables[1] != []
    assert same(*ends)


class Swap(Callback):
    """Gives the Trainer another optimizer after three full steps."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.global_step == 3:
            trainer.optimizers = [torch.optim.SGD(pl_module.parameters(), lr=0.01)]


def test_another_optimizer_in_mid_run_is_refused() -> None:
    with pytest.raises(UnsupportedSetupError, match="with which training began"):
        fit([Ungated(), Swap()], Net(), max_steps=30)


class Noted(Net):
    """Keeps its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(float(loss.detach()))
        return loss


@pytest.mark.parametrize("window", [1, 4, 5])
def test_the_verdict_sees_the_mean_loss_of_the_window(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback, model, seen = Recorded(), Noted(), judged_losses(monkeypatch)
    fit([callback], model, max_steps=24, accumulate_grad_batches=window)
    epochs = [model.losses[k : k + 16] for k in range(0, len(model.losses), 16)]
    means = [fmean(e[k : k + window]) for e in epochs for k in range(0, len(e), window)]
    steps = zip(callback.records, means, strict=True)
    assert seen == pytest.approx([mean for record, mean in steps if record.verdict])
    assert len(seen) > 3
