"""neuralforecast trains with deep copies of its models, callbacks included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid_predict import HybridPredict

pd = pytest.importorskip("pandas")
neuralforecast = pytest.importorskip("neuralforecast")
from neuralforecast.models import MLP, NHITS, TFT  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def waves() -> Any:
    days = pd.date_range("2020-01-01", periods=200, freq="D")
    noise = np.random.default_rng(0)
    rows = [
        pd.DataFrame({"unique_id": str(k), "ds": days, "y": np.sin(np.arange(200) / 7 + k)
                      + 0.1 * noise.normal(size=200)})
        for k in range(3)
    ]  # fmt: skip
    return pd.concat(rows)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MLP": (MLP, {"hidden_size": 32}),
    "NHITS": (NHITS, {"mlp_units": 3 * [[32, 32]]}),
    "TFT": (TFT, {"hidden_size": 16, "windows_batch_size": 64}),
}


@pytest.mark.parametrize("name", MODELS)
def test_trains_forecasts_and_saves(
    name: str, tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    kind, options = MODELS[name]
    model = kind(h=5, input_size=20, max_steps=150, logger=False, scaler_type="standard",
                 callbacks=[callback], **options, **quiet)  # fmt: skip
    forecast = neuralforecast.NeuralForecast([model], freq="D")
    forecast.fit(waves())
    assert callback.engine is None, "a copy was trained with"
    ledger = callback.ledger
    assert ledger.steps == 150 and ledger.predicted_steps > 20
    made = forecast.predict()
    forecast.save(str(tmp_path), overwrite=True, save_dataset=True)
    again = neuralforecast.NeuralForecast.load(str(tmp_path)).predict()
    assert np.allclose(again[name], made[name])
    forecast.fit(waves())
    assert callback.ledger is not ledger and callback.ledger.steps == 150
