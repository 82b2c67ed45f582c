"""pytorch-forecasting, whose networks are LightningModules that log a great deal themselves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from hybrid_predict import HybridPredict

pd = pytest.importorskip("pandas")
forecasting = pytest.importorskip("pytorch_forecasting")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_a_temporal_fusion_transformer_trains(
    callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    at, noise = np.arange(120), np.random.default_rng(0)
    rows = [
        pd.DataFrame({"t": at, "g": str(k), "y": np.sin(at / 7 + k) + 0.1 * noise.normal(size=120)})
        for k in range(4)
    ]
    data = forecasting.TimeSeriesDataSet(
        pd.concat(rows, ignore_index=True), time_idx="t", target="y", group_ids=["g"],
        max_encoder_length=20, max_prediction_length=5, time_varying_unknown_reals=["y"],
        time_varying_known_reals=["t"],
    )  # fmt: skip
    torch.manual_seed(0)
    model = forecasting.TemporalFusionTransformer.from_dataset(
        data, hidden_size=16, attention_head_size=2, learning_rate=1e-2, optimizer="adam"
    )
    train, val = (data.to_dataloader(train=t, batch_size=32) for t in (True, False))
    trainer = pl.Trainer(max_epochs=12, callbacks=[callback], logger=False, gradient_clip_val=0.1,
                         limit_val_batches=2, enable_checkpointing=False, **quiet)  # fmt: skip
    trainer.fit(model, train, val)
    assert callback.ledger.steps == trainer.global_step == 144
    assert callback.ledger.predicted_steps > 10 and trainer.current_epoch == 12
