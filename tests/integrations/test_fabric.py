"""The engine in a loop of Lightning Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from loops import same_bits
from torch import nn
from wrapped_loops import STEPS, batch, config, loss_of, parts, plain_loop

from hybrid_predict import HybridEngine, UnsupportedSetupError


class Run:
    """The run of the plain loop with Fabric, which can stop and be saved."""

    def __init__(self, precision: Any = "32-true") -> None:
        self.fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        self.plain, optimizer, self.scheduler = parts()
        self.model, self.optimizer = self.fabric.setup(self.plain, optimizer)
        self.engine = HybridEngine(self.model.module, self.optimizer.optimizer, config())

    def train(self, until: int = STEPS) -> nn.Module:
        while self.engine.ledger.steps < until:
            self.engine.before_step()
            loss = loss_of(self.model, batch(self.engine.ledger.full_steps))
            self.fabric.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            for _ in range(self.engine.after_step(loss).ticks):
                self.scheduler.step()
        return self.plain

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "engine": self.engine}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_trains_as_the_plain_loop_does(precision: str) -> None:
    model, engine = plain_loop(bf16=precision == "bf16-mixed")
    run = Run(precision)
    assert same_bits(run.train().state_dict(), model.state_dict())
    assert run.scheduler.last_epoch == STEPS
    assert run.engine.ledger.predicted_steps == engine.ledger.predicted_steps > 5


def test_saves_and_loads_the_engine_among_the_rest(tmp_path: Path) -> None:
    whole, first = Run(), Run()
    whole.train()
    first.train(14)
    scheduler = {"scheduler": first.scheduler.state_dict()}
    first.fabric.save(tmp_path / "checkpoint", {**first.state(), **scheduler})
    resumed = Run()
    rest = resumed.fabric.load(tmp_path / "checkpoint", resumed.state())
    resumed.scheduler.load_state_dict(rest["scheduler"])
    assert same_bits(resumed.train().state_dict(), whole.plain.state_dict())


def test_the_optimizer_that_fabric_wraps_is_asked_for() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer, _ = parts()
    wrapped, stepped = fabric.setup(model, optimizer)
    with pytest.raises(UnsupportedSetupError, match="inner optimizer"):
        HybridEngine(wrapped, stepped, config())
    assert isinstance(stepped.optimizer, torch.optim.AdamW)
