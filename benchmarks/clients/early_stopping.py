"""Epoch at which early stopping ends an scVI run whose loss changes during a warm-up.

While the weight of the KL term rises, the negated evidence lower bound on held-out cells hardly
falls, the less with the plug-in, because it has fallen further before. Early stopping with a
patience of a few epochs may then end the run.

Run with: python -m benchmarks.clients.early_stopping
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.clients.base import QUIET
from benchmarks.clients.run import quiet
from benchmarks.clients.scvi_tools import CLIENT
from hybrid_predict.runs.runtime import environment, write_json

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "early_stopping.json"

EPOCHS, RISE, PATIENCE, SEEDS = 60, 30, 5, 3
"""Epochs of a run, epochs in which the weight of KL rises, patience, number of seeds."""

ADVISED = {"early_stopping_warmup_epochs": RISE}
"""Arguments of ``train`` that start early stopping after the warm-up."""

WAYS: dict[str, tuple[bool, dict[str, Any]]] = {
    "plain": (False, {}),
    "hybrid": (True, {}),
    "plain, as advised": (False, ADVISED),
    "hybrid, as advised": (True, ADVISED),
}
"""Whether to train with the plug-in, and further arguments of ``train``."""


def stopped(plugin: bool, more: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train; return the epoch at which the run stopped, and the bound on held-out cells."""
    import scvi
    from lightning.fabric import seed_everything

    from hybrid_predict import HybridPredict

    data = CLIENT.data(seed)
    seed_everything(seed, verbose=False)
    scvi.settings.seed = seed
    scvi.model.SCVI.setup_anndata(data, batch_key="batch")
    model = scvi.model.SCVI(data)
    callbacks = [HybridPredict(log_dir=None)] if plugin else []
    own = {k: v for k, v in QUIET.items() if k != "enable_model_summary"}
    model.train(
        max_epochs=EPOCHS, batch_size=64, callbacks=callbacks, early_stopping=True,
        early_stopping_patience=PATIENCE, plan_kwargs={"n_epochs_kl_warmup": RISE, "lr": 1e-2},
        **more, **own,
    )  # fmt: skip
    epoch = model.trainer.current_epoch
    seed_everything(seed, verbose=False)
    return {"seed": seed, "epoch": epoch, "quality": CLIENT.quality(model, data)}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return a row for each way: epochs at which its runs stopped, and mean bound."""
    rows = []
    for way in WAYS:
        runs = [row for row in found["rows"] if row["way"] == way]
        epochs = ", ".join(str(row["epoch"]) for row in runs)
        rows.append([way, epochs, f"{statistics.fmean(row['quality'] for row in runs):.2f}"])
    return rows


def main() -> None:
    """Train every way with every seed, and write the results file."""
    torch.set_num_threads(1)
    quiet()
    rows: list[dict[str, Any]] = []
    for seed in range(SEEDS):
        for way, (plugin, more) in WAYS.items():
            rows.append({"way": way, **stopped(plugin, more, seed)})
            print(rows[-1], flush=True)
            settings = {"epochs": EPOCHS, "rise": RISE, "patience": PATIENCE}
            write_json({"environment": environment(), **settings, "rows": rows}, RESULTS)


if __name__ == "__main__":
    main()
