"""darts: TiDE on the weekly carbon dioxide of Mauna Loa that statsmodels ships."""

from typing import Any

import numpy as np
import torch
from darts import TimeSeries
from darts.metrics import mae
from darts.models import TiDEModel
from statsmodels.datasets import co2

from benchmarks.clients import QUIET, Callbacks

HISTORY = 52
HORIZON = 13
TESTED = 208


def data(seed: int) -> Any:
    weeks = co2.load_pandas().data["co2"].interpolate().diff().dropna()
    series = TimeSeries.from_series((weeks / weeks.std()).astype(np.float32))
    return series[:-TESTED], series


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = TiDEModel(
        HISTORY, HORIZON, n_epochs=length, random_state=torch.initial_seed() % 2**31,
        pl_trainer_kwargs={**QUIET, "callbacks": list(callbacks)},
    )  # fmt: skip
    return model.fit(data[0])


def quality(trained: Any, data: Any) -> float:
    windows = trained.historical_forecasts(
        data[1], start=len(data[0]), forecast_horizon=HORIZON, stride=HORIZON, retrain=False,
        last_points_only=False,
    )  # fmt: skip
    return float(np.mean(mae([data[1]] * len(windows), windows)))
