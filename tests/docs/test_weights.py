"""A trained model's weights leave and enter without the plug-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lightning_models import SeededLoader, Ungated, fit


def test_a_checkpoint_loads_where_the_plug_in_is_not_installed(tmp_path: Path) -> None:
    trainer, model = fit([Ungated()], train=SeededLoader(), max_steps=30)
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
