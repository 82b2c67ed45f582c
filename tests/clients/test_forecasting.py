"""Packages that forecast time series: darts, GluonTS, neuralforecast, pytorch-forecasting."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest

from hybrid_predict import HybridConfig, HybridPredict, MomentumPredictor, SavingsLedger
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.integrations.lightning import LastRun

pd = pytest.importorskip("pandas")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def wave(length: int, phase: float = 0.0, period: float = 44.0) -> np.ndarray:
    noise = 0.1 * np.random.default_rng(int(phase)).normal(size=length)
    return np.sin(2 * np.pi * np.arange(length) / period + phase) + noise


def test_darts_pickles_the_callback_and_loads_it_by_an_allow_list(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    darts = pytest.importorskip("darts")
    from darts.models import TiDEModel
    from darts.utils.serialization import safe_globals

    days = pd.date_range("2020-01-01", periods=300, freq="D")
    series = darts.TimeSeries.from_times_and_values(days, wave(300).astype(np.float32))
    model = TiDEModel(
        20, 5, hidden_size=32, n_epochs=20, batch_size=32, random_state=0, model_name="tide",
        save_checkpoints=True, force_reset=True, work_dir=str(tmp_path),
        pl_trainer_kwargs={"callbacks": [callback], "logger": False, **quiet},
    )  # fmt: skip
    model.fit(series)
    ledger = callback.ledger
    assert ledger.steps == model.trainer.global_step == 180 and ledger.predicted_steps > 20
    made = model.predict(5).values()
    model.save(str(tmp_path / "tide.pt"))
    with safe_globals([HybridPredict, HybridConfig, LastRun, MomentumPredictor, SavingsLedger]):
        loaded = TiDEModel.load(str(tmp_path / "tide.pt"))
        taken = TiDEModel.load_from_checkpoint("tide", work_dir=str(tmp_path), best=False)
    trusted = TiDEModel.load(str(tmp_path / "tide.pt"), trusted=True)
    for other in (loaded, trusted):
        assert np.array_equal(other.predict(5).values(), made)
    assert np.array_equal(taken.predict(5, series=series).values(), made)
    again = model.untrained_model()
    again.fit(series)
    used = next(c for c in again.trainer.callbacks if isinstance(c, HybridPredict))
    assert used is not callback and used.ledger.steps == 180
    assert callback.ledger is ledger, "a callback that has run itself tells of its own run"


BATCHES = 20


def gluonts(**trainer_kwargs: Any) -> tuple[Any, Any]:
    """An estimator, whose loaders have no length, and series."""
    pytest.importorskip("gluonts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for a faster parser of JSON
        from gluonts.dataset.common import ListDataset
        from gluonts.torch import SimpleFeedForwardEstimator

    waves = [{"start": "2024-01-01", "target": wave(200, k, period=24)} for k in range(8)]
    own = {"batch_size": 16, "num_batches_per_epoch": BATCHES, "trainer_kwargs": trainer_kwargs}
    estimator = SimpleFeedForwardEstimator(12, 24, hidden_dimensions=[32, 32, 32], **own)
    return estimator, ListDataset(waves, freq="h")


def test_gluonts_trains_and_forecasts(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    limits = {"max_epochs": 4, "limit_train_batches": BATCHES, "default_root_dir": tmp_path}
    estimator, series = gluonts(callbacks=[callback], **quiet, **limits)
    output = estimator.train_model(series, validation_data=series)
    assert callback.ledger.steps == output.trainer.global_step == 4 * BATCHES
    assert callback.ledger.predicted_steps > 20 and output.trainer.current_epoch == 4
    forecast = next(iter(output.predictor.predict(series)))
    assert np.isfinite(forecast.quantile(0.5)).all()


def test_gluonts_is_asked_for_the_length_of_an_epoch(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    limits = {"max_epochs": 4, "default_root_dir": tmp_path}
    estimator, series = gluonts(callbacks=[callback], **quiet, **limits)
    with pytest.raises(UnsupportedSetupError, match=r"limit_train_batches"):
        estimator.train_model(series)


def test_neuralforecast_trains_deep_copies_of_models_and_callbacks(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    neuralforecast = pytest.importorskip("neuralforecast")
    days = pd.date_range("2020-01-01", periods=200, freq="D")
    waves = pd.concat(
        pd.DataFrame({"unique_id": str(k), "ds": days, "y": wave(200, k)}) for k in range(3)
    )
    model = neuralforecast.models.MLP(
        h=5, input_size=20, max_steps=150, logger=False, scaler_type="standard",
        callbacks=[callback], hidden_size=32, **quiet,
    )  # fmt: skip
    forecast = neuralforecast.NeuralForecast([model], freq="D")
    forecast.fit(waves)
    assert callback.engine is None, "a copy was trained with"
    ledger = callback.ledger
    assert ledger.steps == 150 and ledger.predicted_steps > 20
    made = forecast.predict()
    forecast.save(str(tmp_path), overwrite=True, save_dataset=True)
    again = neuralforecast.NeuralForecast.load(str(tmp_path)).predict()
    assert np.allclose(again["MLP"], made["MLP"])
    forecast.fit(waves)
    assert callback.ledger is not ledger and callback.ledger.steps == 150


def test_ranger_is_refused_for_its_second_copy_of_the_weights(
    callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    pytest.importorskip("pytorch_optimizer")
    forecasting = pytest.importorskip("pytorch_forecasting")
    waves = [pd.DataFrame({"t": np.arange(120), "g": str(k), "y": wave(120, k)}) for k in range(4)]
    data = forecasting.TimeSeriesDataSet(
        pd.concat(waves, ignore_index=True), time_idx="t", target="y", group_ids=["g"],
        max_encoder_length=20, max_prediction_length=5, time_varying_unknown_reals=["y"],
    )  # fmt: skip
    options = {"optimizer": "ranger", "widths": [32, 64], "num_blocks": [1, 1]}
    model = forecasting.NBeats.from_dataset(data, **options)
    trainer = pl.Trainer(max_epochs=12, callbacks=[callback], logger=False, **quiet)
    with pytest.raises(UnsupportedSetupError, match="second"):
        trainer.fit(model, data.to_dataloader(train=True, batch_size=32))
