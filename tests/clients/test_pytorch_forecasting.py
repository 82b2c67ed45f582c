"""pytorch-forecasting, whose networks are LightningModules that log a great deal themselves."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest

from hybrid_predict import HybridPredict, UnsupportedSetupError

pd = pytest.importorskip("pandas")
forecasting = pytest.importorskip("pytorch_forecasting")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


EPOCHS = 12


def series(**more: Any) -> Any:
    at, noise = np.arange(120), np.random.default_rng(0)
    rows = [
        pd.DataFrame({"t": at, "g": str(k), "y": np.sin(at / 7 + k) + 0.1 * noise.normal(size=120)})
        for k in range(4)
    ]
    return forecasting.TimeSeriesDataSet(
        pd.concat(rows, ignore_index=True), time_idx="t", target="y", group_ids=["g"],
        max_encoder_length=20, max_prediction_length=5, time_varying_unknown_reals=["y"], **more,
    )  # fmt: skip


def train(data: Any, model: Any, callback: HybridPredict, quiet: dict[str, Any]) -> pl.Trainer:
    train, val = (data.to_dataloader(train=t, batch_size=32) for t in (True, False))
    trainer = pl.Trainer(max_epochs=EPOCHS, callbacks=[callback], logger=False,
                         gradient_clip_val=0.1, limit_val_batches=2, enable_checkpointing=False,
                         **quiet)  # fmt: skip
    trainer.fit(model, train, val)
    return trainer


def test_a_temporal_fusion_transformer_trains(
    callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    data = series(time_varying_known_reals=["t"])
    model = forecasting.TemporalFusionTransformer.from_dataset(
        data, hidden_size=16, attention_head_size=2, learning_rate=1e-2, optimizer="adam"
    )
    trainer = train(data, model, callback, quiet)
    assert callback.ledger.steps == trainer.global_step == 144
    assert callback.ledger.predicted_steps > 10 and trainer.current_epoch == EPOCHS


def n_beats(data: Any, **more: Any) -> Any:
    return forecasting.NBeats.from_dataset(
        data, learning_rate=1e-3, widths=[32, 64], num_blocks=[1, 1], **more
    )


def test_n_beats_trains(callback: HybridPredict, quiet: dict[str, Any]) -> None:
    data = series()
    trainer = train(data, n_beats(data, optimizer="adam"), callback, quiet)
    assert callback.ledger.steps == trainer.global_step
    assert callback.ledger.predicted_steps > 10 and trainer.current_epoch == EPOCHS


def test_ranger_is_refused_for_its_second_copy_of_the_weights(
    callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    pytest.importorskip("pytorch_optimizer")
    data = series()
    with pytest.raises(UnsupportedSetupError, match="second"):
        train(data, n_beats(data, optimizer="ranger"), callback, quiet)
