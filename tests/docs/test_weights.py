"""A trained model's weights leave and enter without the plug-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights

TESTS = Path(__file__).parents[1]
KEY = "hybrid_predict"


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any]:
    return fit([Ungated(speedup=1.5, max_overhead=1e9)], train=SeededLoader(), max_steps=30)


def test_a_checkpoint_loads_where_the_plug_in_is_not_installed(
    trained: tuple[Any, Any], tmp_path: Path
) -> None:
    trainer, model = trained
    path = tmp_path / "whole.ckpt"
    trainer.save_checkpoint(path, weights_only=False)
    code = """
import sys
import torch
sys.modules["hybrid_predict"] = None
checkpoint = torch.load(sys.argv[1], weights_only=True)
print(checkpoint["state_dict"]["net.0.weight"].sum().item())
print(sorted(checkpoint["callbacks"]))
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stderr == ""
    total, callbacks = done.stdout.split()
    assert (float(total), callbacks) == (model.net[0].weight.sum().item(), "[]")


def test_weights_only_leave_its_state_out(tmp_path: Path) -> None:
    whole = ModelCheckpoint(tmp_path, "whole", every_n_train_steps=30)
    light = ModelCheckpoint(tmp_path, "light", save_weights_only=True, every_n_epochs=1)
    _, model = fit([Ungated(speedup=1.5, max_overhead=1e9), whole, light], max_steps=30)
    paths = {name: tmp_path / f"{name}.ckpt" for name in ("whole", "light")}
    saved = {name: torch.load(path, weights_only=True) for name, path in paths.items()}
    assert KEY in saved["whole"] and KEY not in saved["light"]
    assert same(saved["light"]["state_dict"], saved["whole"]["state_dict"])
    assert same(weights(Net.load_from_checkpoint(paths["light"])), weights(model))
