"""deeptab, whose estimators make a Trainer with early stopping and load its best weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybrid_predict import HybridPredict

pd = pytest.importorskip("pandas")
deeptab = pytest.importorskip("deeptab.models")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", ["ResNetRegressor", "FTTransformerRegressor"])
def test_trains_and_predicts(
    name: str, tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.normal(size=(400, 6)), columns=list("abcdef"))
    target = (table["a"] * table["b"] + table["c"]).to_numpy()
    model = getattr(deeptab, name)(random_state=0)
    model.fit(
        table, target, max_epochs=30, lr=1e-3, batch_size=64, callbacks=[callback], logger=False,
        checkpoint_path=str(tmp_path), **quiet,
    )  # fmt: skip
    assert callback.ledger.steps == model._trainer.global_step
    assert callback.ledger.predicted_steps > 20
    error = np.ravel(model.predict(table)) - target
    assert np.mean(error**2) < 0.8 * np.var(target)
