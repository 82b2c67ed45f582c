"""chemprop, whose models are LightningModules with a schedule of their own."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from hybrid_predict import HybridPredict

chemprop = pytest.importorskip("chemprop")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_message_passing_trains_with_its_schedule_complete(
    callback: HybridPredict, quiet: dict[str, Any]
) -> None:
    ends = ("", "O", "N", "F", "Cl", "C(=O)O")
    molecules = ["C" * length + end for length in range(1, 30) for end in ends]
    points = [
        chemprop.data.MoleculeDatapoint.from_smi(smiles, [len(smiles) / 20 + ("O" in smiles) / 2])
        for smiles in molecules
    ]
    data = chemprop.data.MoleculeDataset(points)
    loader = chemprop.data.build_dataloader(data, batch_size=32, seed=0)
    torch.manual_seed(0)
    model = chemprop.models.MPNN(
        chemprop.nn.BondMessagePassing(d_h=64),
        chemprop.nn.MeanAggregation(),
        chemprop.nn.RegressionFFN(input_dim=64, hidden_dim=64),
        batch_norm=True,
        final_lr=1e-4,
    )
    trainer = pl.Trainer(max_epochs=30, callbacks=[callback], logger=False,
                         enable_checkpointing=False, **quiet)  # fmt: skip
    trainer.fit(model, loader)
    assert callback.ledger.steps == trainer.global_step == 180
    assert callback.ledger.predicted_steps > 30 and trainer.current_epoch == 30
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4)
