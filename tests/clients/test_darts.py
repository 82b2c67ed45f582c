"""darts pickles the callbacks of a model that it saves, and loads them by an allow-list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid_predict import HybridConfig, HybridPredict, MomentumPredictor
from hybrid_predict.integrations.last_run import LastRun
from hybrid_predict.ledger import SavingsLedger

pd = pytest.importorskip("pandas")
darts = pytest.importorskip("darts")
from darts.models import TiDEModel  # noqa: E402
from darts.utils.serialization import safe_globals  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OURS = [HybridPredict, HybridConfig, LastRun, MomentumPredictor, SavingsLedger]


def test_trains_forecasts_saves_and_loads(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    days = pd.date_range("2020-01-01", periods=300, freq="D")
    noise = 0.1 * np.random.default_rng(0).normal(size=300)
    series = darts.TimeSeries.from_times_and_values(
        days, (np.sin(np.arange(300) / 7) + noise).astype(np.float32)
    )
    model = TiDEModel(
        20, 5, hidden_size=32, n_epochs=20, batch_size=32, random_state=0, model_name="tide",
        save_checkpoints=True,
        force_reset=True, work_dir=str(tmp_path), pl_trainer_kwargs={
            "callbacks": [callback], "logger": False, **quiet},
    )  # fmt: skip
    model.fit(series)
    ledger = callback.ledger
    assert ledger.steps == model.trainer.global_step == 180 and ledger.predicted_steps > 20
    made = model.predict(5).values()
    model.save(str(tmp_path / "tide.pt"))
    with safe_globals(OURS):
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
