"""There is one set of weights: who may see what, what is undone, and what user code does counts."""

from __future__ import annotations

import copy
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning_models import Net, Recorded, Ungated, fit, same, weights
from witness import verifies

from hybrid_predict import HybridPredict, Verdict

MORE = {"precision": "bf16-mixed", "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}


@pytest.mark.parametrize(
    ("mode", "options"),
    [({"enabled": False}, {}), ({"shadow": True}, MORE), ({"updates": {}, "speedup": 1}, MORE)],
    ids=str,
)
def test_switched_off_or_in_shadow_training_is_bit_identical(
    tmp_path: Path, mode: dict[str, Any], options: dict[str, Any]
) -> None:
    tables, ends = [], []
    for name, callbacks in (("plain", []), ("hybrid", [Ungated(**mode)])):
        logger = CSVLogger(tmp_path, name)
        trainer, model = fit(callbacks, max_steps=30, logger=logger, **options)
        logger.save()
        with Path(logger.log_dir, "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        users = [{k: v for k, v in row.items() if "hybrid_predict" not in k} for row in rows]
        tables.append([row for row in users if row["train_loss_step"] or row["val_loss"]])
        ends.append({**weights(model), "random state": torch.get_rng_state()})
        assert trainer.global_step == 30
    assert tables[0] == tables[1] != []
    assert same(*ends)


class AtPredicted:
    """The first batches of the first verifying steps, as ``nan_at`` of a net."""

    def __init__(self, callback: HybridPredict, count: int) -> None:
        self.callback, self.count = callback, count
        self.spoiled: list[int] = []

    def __contains__(self, batch: int) -> bool:
        number = self.callback.ledger.full_steps + 1
        due = verifies(self.callback) and number not in self.spoiled
        if due and len(self.spoiled) < self.count:
            self.spoiled.append(number)
            return True
        return False


UNDONE: dict[str, dict[str, Any]] = {
    "window": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    "fused": {"precision": "bf16-mixed"},
}


@pytest.mark.parametrize("name", UNDONE)
def test_a_broken_batch_right_after_predicted_steps_leaves_no_trace(name: str) -> None:
    states: list[Any] = []

    class Spoiled(Net):
        def configure_optimizers(self) -> Any:
            fused = {"fused": True} if "fused" in name else {}
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1, **fused)

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if not trainer.fit_loop._should_accumulate():
                state = trainer.optimizers[0].state_dict()
                states.append(copy.deepcopy((weights(module), state)))

    callback, model = Recorded(), Spoiled()
    model.nan_at = AtPredicted(callback, 2)
    trainer, _ = fit([callback, Watch()], model, max_steps=48, **UNDONE[name])
    undone = [r.step for r in callback.records if r.verdict is Verdict.UNDONE]
    assert undone == model.nan_at.spoiled and len(undone) == 2
    assert callback.ledger.undone_steps == 2
    assert callback.ledger.predicted_steps + callback.ledger.full_steps == 48
    assert trainer.global_step == 48
    for step in undone:
        torch.testing.assert_close(states[step - 1], states[step - 2], rtol=0, atol=0)
    assert all(p.isfinite().all() for p in model.parameters())


class Bank(Net):
    """Trains nothing: it has no optimizer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None

    def configure_optimizers(self) -> Any:
        return None


@pytest.mark.filterwarnings("ignore:.* returned `None`")
def test_a_run_that_trains_nothing_goes_on_as_without_the_callback() -> None:
    callback = Ungated()
    with pytest.warns(UserWarning, match="HybridPredict does nothing in this run"):
        trainer, _ = fit([callback], Bank(), max_epochs=2)
    assert trainer.current_epoch == 2
    assert callback.engine is None and callback.ledger.steps == 0
