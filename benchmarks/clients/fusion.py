"""pytorch-forecasting: a temporal fusion transformer on series that the package generates."""

from typing import Any

from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data.examples import generate_ar_data

from benchmarks.clients import Callbacks, fitted, validated

HORIZON = 6


def data(seed: int) -> Any:
    table = generate_ar_data(n_series=10, timesteps=150, seasonality=10.0, seed=seed)
    table["series"] = table["series"].astype(str)
    table["time_idx"] = table["time_idx"].astype(int)
    shared = {
        "time_idx": "time_idx", "target": "value", "group_ids": ["series"],
        "max_encoder_length": 24, "max_prediction_length": HORIZON,
        "time_varying_unknown_reals": ["value"], "time_varying_known_reals": ["time_idx"],
        "static_categoricals": ["series"],
    }  # fmt: skip
    cut = table["time_idx"].max() - 4 * HORIZON
    train = TimeSeriesDataSet(table[table["time_idx"] <= cut], **shared)
    val = TimeSeriesDataSet.from_dataset(train, table, min_prediction_idx=cut + 1)
    return (
        train,
        train.to_dataloader(train=True, batch_size=64),
        val.to_dataloader(train=False, batch_size=256),
    )


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = TemporalFusionTransformer.from_dataset(data[0])
    return fitted(model, data[1:], length, callbacks, gradient_clip_val=0.1)


quality = validated("val_loss", 2)
