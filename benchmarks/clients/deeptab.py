"""deeptab: a residual network on tabular data, with the package's early stopping."""

import tempfile
from typing import Any

import numpy as np
import torch
from deeptab.models import ResNetRegressor
from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from benchmarks.clients import QUIET, Callbacks


def data(seed: int) -> Any:
    table, target = load_diabetes(return_X_y=True, as_frame=True)
    return train_test_split(table, np.asarray(target), test_size=0.2, random_state=seed)


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    x, held, y, y_held = data
    model = ResNetRegressor(random_state=torch.initial_seed() % 2**31)
    with tempfile.TemporaryDirectory() as folder:
        model.fit(
            x, y, X_val=held, y_val=y_held, max_epochs=length, callbacks=list(callbacks),
            checkpoint_path=folder, **QUIET,
        )  # fmt: skip
    return model


def quality(trained: Any, data: Any) -> float:
    error = np.ravel(trained.predict(data[1])) - data[3]
    return float(np.mean(error**2) / np.var(data[3]))
