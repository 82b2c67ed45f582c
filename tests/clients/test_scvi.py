"""scvi-tools, whose models hand what they are given to a Trainer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybrid_predict import HybridPredict

scvi = pytest.importorskip("scvi")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_totalvi_trains_with_two_optimizers_under_manual_optimization(
    tmp_path: Path, callback: HybridPredict, quiet: dict[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = scvi.data.synthetic_iid(batch_size=200)
    names = {"batch_key": "batch", "protein_expression_obsm_key": "protein_expression"}
    scvi.model.TOTALVI.setup_anndata(cells, **names)
    model = scvi.model.TOTALVI(cells, n_latent=5)
    del quiet["enable_model_summary"]
    model.train(max_epochs=20, batch_size=64, callbacks=[callback], **quiet)
    assert callback.ledger.steps == 120 and callback.ledger.predicted_steps > 5
