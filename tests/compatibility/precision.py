"""Rows: what numbers the weights and the forward pass are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision

from compatibility.rows import row
from compatibility.subject import STEPS, Run, Subject, mlp, train
from hybrid_predict.ranks.shards import local


@row("`32-true`", "32-true", torch.float32)
@row("`64-true`", "64-true", torch.float64)
@row("`bf16-mixed`", "bf16-mixed", torch.float32)
@row("`bf16-true`", "bf16-true", torch.bfloat16)
@row("`16-true`", "16-true", torch.float16)
def trains(precision: str, dtype: torch.dtype, folder: Path) -> None:
    # In 16 bits the default eps would be 0.
    subject = Subject(mlp(), optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4))
    run = train(subject, precision=precision).sound()
    assert {p.dtype for p in run.model.parameters()} == {dtype}
    assert run.plugin.engine is not None
    saved = run.plugin.engine.state_dict()["tensors"]["groups"]
    carried = [part["carry"] for part in saved if part is not None]  # rank 0 has that of shards
    assert all(bool(carry) == (dtype.itemsize == 2) for carry in carried)
    assert all(c.dtype == torch.float32 and c.any() for carry in carried for c in carry)


class Overflow(Callback):
    """Makes the scaled gradients of some batches overflow."""

    def __init__(self, batches: set[int]) -> None:
        self.batches = batches

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if module.batches - 1 in self.batches:
            local(module.net[0].weight.grad)[0] = float("inf")


SCALE = 2.0**10


@row("`16-mixed` with a `GradScaler`", False)
@row("`16-mixed` with a `GradScaler`, fused optimizer", True)
def scaled(fused: bool, folder: Path) -> None:
    def run(broken: set[int]) -> tuple[Run, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        subject = Subject(optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=fused))
        plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
        return train(subject, [Overflow(broken)], plugins=plugins), scaler

    whole = run(set())[0].sound()
    verifying = [r.step - 1 for r in whole.plugin.records if r.predicted]
    # One ordinary step, and one right after a predicted step, which is undone.
    spoiled, scaler = run({0, verifying[2]})
    spoiled.sound(full_steps=STEPS - spoiled.ledger.predicted_steps)
    assert spoiled.ledger.undone_steps == 1
    assert scaler.get_scale() == SCALE / 4
    updates = {float(s["step"]) for s in spoiled.trainer.optimizers[0].state.values()}
    assert updates == {spoiled.ledger.full_steps - 2}
