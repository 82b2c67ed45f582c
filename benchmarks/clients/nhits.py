"""neuralforecast: NHITS on the panel of airline passengers that the package ships."""

from typing import Any

import neuralforecast
import torch
from neuralforecast.models import NHITS
from neuralforecast.utils import AirPassengersPanel

from benchmarks.clients import QUIET, Callbacks

HORIZON = 12
TESTED = 24


def data(seed: int) -> Any:
    return AirPassengersPanel[["unique_id", "ds", "y"]]


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = NHITS(
        h=HORIZON, input_size=2 * HORIZON, max_steps=length, scaler_type="robust",
        windows_batch_size=128, random_seed=torch.initial_seed() % 2**31,
        callbacks=list(callbacks), enable_checkpointing=False, **QUIET,
    )  # fmt: skip
    forecasts = neuralforecast.NeuralForecast([model], freq="ME")
    return forecasts.cross_validation(data, n_windows=None, test_size=TESTED, step_size=1)


def quality(trained: Any, data: Any) -> float:
    return float((trained["y"] - trained["NHITS"]).abs().mean())
