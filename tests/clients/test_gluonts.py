"""GluonTS, whose loaders have no length: ``limit_train_batches`` tells that of an epoch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid_predict import HybridPredict, UnsupportedSetupError

pytest.importorskip("gluonts")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for a faster parser of JSON
    from gluonts.dataset.common import ListDataset
    from gluonts.torch import DeepAREstimator, SimpleFeedForwardEstimator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

BATCHES = 20


def series() -> ListDataset:
    noise = 0.1 * np.random.default_rng(0).normal(size=(8, 200))
    waves = np.sin(2 * np.pi * (np.arange(200) + np.arange(8)[:, None]) / 24) + noise
    return ListDataset([{"start": "2024-01-01", "target": wave} for wave in waves], freq="h")


def estimator(name: str, trainer_kwargs: dict[str, Any]) -> Any:
    own = {"batch_size": 16, "num_batches_per_epoch": BATCHES, "trainer_kwargs": trainer_kwargs}
    if name == "SimpleFeedForward":
        return SimpleFeedForwardEstimator(12, 24, hidden_dimensions=[32, 32, 32], **own)
    return DeepAREstimator("h", 6, 12, hidden_size=16, **own)


@pytest.mark.parametrize("name", ["SimpleFeedForward", "DeepAR"])
def test_trains_and_forecasts(
    name: str, tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    limits = {"max_epochs": 4, "limit_train_batches": BATCHES, "default_root_dir": tmp_path}
    made = estimator(name, {**quiet, **limits, "callbacks": [callback]})
    output = made.train_model(series(), validation_data=series())
    assert callback.ledger.steps == output.trainer.global_step == 4 * BATCHES
    assert callback.ledger.predicted_steps > 20 and output.trainer.current_epoch == 4
    forecast = next(iter(output.predictor.predict(series())))
    assert np.isfinite(forecast.quantile(0.5)).all()


def test_the_length_of_an_epoch_is_asked_for(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    given = {**quiet, "max_epochs": 4, "default_root_dir": tmp_path, "callbacks": [callback]}
    with pytest.raises(UnsupportedSetupError, match=r"limit_train_batches"):
        estimator("SimpleFeedForward", given).train_model(series())
