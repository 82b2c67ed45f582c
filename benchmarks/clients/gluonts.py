"""gluonts: PatchTST on monthly series with a trend and a season, sampled without end."""

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gluonts.dataset.common import ListDataset
from gluonts.dataset.split import split
from gluonts.evaluation import Evaluator
from gluonts.evaluation.backtest import make_evaluation_predictions
from gluonts.torch import PatchTSTEstimator

from benchmarks.clients import QUIET, Callbacks

HORIZON = 12
BATCHES = 50


def data(seed: int) -> Any:
    random = np.random.default_rng(seed)
    month = np.arange(180)
    series = []
    for _ in range(60):
        season = np.sin(2 * np.pi * (month / 12 + random.uniform()))
        level = 10 + np.cumsum(random.normal(0.05, 0.1, len(month)))
        made = level * (1 + random.uniform(0.1, 0.4) * season)
        series.append({"start": "2010-01", "target": made + random.normal(0, 0.3, len(month))})
    whole = ListDataset(series, freq="M")
    return split(whole, offset=-HORIZON)[0], whole


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    with TemporaryDirectory() as folder:
        estimator = PatchTSTEstimator(
            prediction_length=HORIZON, patch_len=6, context_length=4 * HORIZON, stride=3,
            num_batches_per_epoch=BATCHES,
            trainer_kwargs={
                "max_epochs": length, "callbacks": list(callbacks), "default_root_dir": folder,
                "limit_train_batches": BATCHES, **QUIET,
            },
        )  # fmt: skip
        return estimator.train(data[0])


def quality(trained: Any, data: Any) -> float:
    forecasts, series = make_evaluation_predictions(data[1], trained, num_samples=100)
    found, _ = Evaluator(num_workers=0)(series, forecasts)
    return float(found["mean_wQuantileLoss"])
