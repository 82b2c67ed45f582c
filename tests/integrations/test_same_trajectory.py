"""The same seed, model and data give the same weights in every loop that there is an adapter for.

docs/loops.md has the table. For Hugging Face see `test_huggingface`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import pytest
import torch
from cases import UNGATED
from lightning.fabric import Fabric
from loops import same_bits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from hybrid_predict import (
    HybridConfig,
    HybridEngine,
    HybridPredict,
    HybridTrainer,
    OptimizerWrapper,
    SavingsLedger,
    TorchModel,
)

STEPS = 30


def config() -> HybridConfig:
    return HybridConfig(
        total_steps=STEPS, warmup_steps=2, cooldown_steps=1, max_overhead=100.0, predictors=UNGATED
    )


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A seeded model, its optimizer and a schedule over all steps."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def batch(index: int) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(index))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    error = model(x).float() - x.sum(1, keepdim=True).sin()
    return error.square().mean()


def plain_loop(window: int = 1, bf16: bool = False) -> tuple[nn.Module, HybridEngine]:
    """The run in a loop of torch alone."""
    model, optimizer, scheduler = parts()
    at = 0
    with HybridEngine(model, optimizer, config()) as engine:
        while not engine.done:
            engine.before_step()
            for _ in range(window):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, batch(at))
                (loss / window).backward()
                at += 1
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(engine.after_step(loss).ticks):
                scheduler.step()
    assert scheduler.last_epoch == STEPS
    return model, engine


Trained = tuple[nn.Module, SavingsLedger, int]
"""The net, the run's ledger, and the step at which the schedule ended."""


def in_the_trainer_of_the_package() -> Trained:
    net, optimizer, scheduler = parts()
    model, wrapper = TorchModel(net, loss_of), OptimizerWrapper(optimizer)
    trainer = HybridTrainer(model, wrapper, config(), scheduler=scheduler)
    while not trainer.done:
        trainer.step(batch(trainer.ledger.full_steps))
    return net, trainer.ledger, scheduler.last_epoch


def in_fabric() -> Trained:
    fabric = Fabric(accelerator="cpu", devices=1)
    plain, inner, scheduler = parts()
    model, optimizer = fabric.setup(plain, inner)
    engine = HybridEngine(model.module, optimizer.optimizer, config())
    while not engine.done:
        engine.before_step()
        loss = loss_of(model, batch(engine.ledger.full_steps))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(engine.after_step(loss).ticks):
            scheduler.step()
    return plain, engine.ledger, scheduler.last_epoch


class Batches(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return map(batch, range(STEPS))


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.optimizer, self.scheduler = parts()

    def training_step(self, x: Tensor, index: int) -> Tensor:
        return loss_of(self.net, x)

    def configure_optimizers(self) -> Any:
        scheduler = {"scheduler": self.scheduler, "interval": "step"}
        return {"optimizer": self.optimizer, "lr_scheduler": scheduler}


def in_lightning() -> Trained:
    module, callback = Module(), HybridPredict(config=config())
    trainer = L.Trainer(
        max_steps=STEPS, accelerator="cpu", callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Batches(), batch_size=None))
    return module.net, callback.ledger, module.scheduler.last_epoch


WAYS: dict[str, Callable[[], Trained]] = {
    "HybridTrainer": in_the_trainer_of_the_package,
    "Fabric": in_fabric,
    "Lightning": in_lightning,
}


@pytest.mark.filterwarnings("ignore:.*The number of training batches")
@pytest.mark.parametrize("way", WAYS)
def test_the_weights_are_those_of_the_plain_loop_bit_for_bit(way: str) -> None:
    expected, engine = plain_loop()
    net, ledger, last = WAYS[way]()
    assert same_bits(dict(net.state_dict()), dict(expected.state_dict()))
    assert (ledger.full_steps, ledger.predicted_steps) == (20, 10)
    assert engine.ledger.full_steps == ledger.full_steps and last == STEPS


@pytest.fixture
def accelerator() -> Iterator[Callable[..., Any]]:
    """Accelerate keeps one state per process, precision included."""
    accelerate = pytest.importorskip("accelerate")
    yield accelerate.Accelerator
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(("window", "precision"), [(3, "no"), (1, "bf16")])
def test_accelerate_trains_as_the_plain_loop_does(
    accelerator: Any, window: int, precision: str
) -> None:
    expected, plain = plain_loop(window, bf16=precision == "bf16")
    prepared = accelerator(cpu=True, gradient_accumulation_steps=window, mixed_precision=precision)
    net, *rest = parts()
    model, optimizer, scheduler = prepared.prepare(net, *rest)
    engine = HybridEngine(prepared.unwrap_model(model), optimizer.optimizer, config())
    at = 0
    while not engine.done:
        with prepared.accumulate(model):
            if not engine.in_step:
                engine.before_step()
            loss = loss_of(model, batch(at))
            prepared.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            at += 1
            if prepared.sync_gradients:
                for _ in range(engine.after_step(loss).ticks):
                    scheduler.step()
    assert same_bits(net.state_dict(), expected.state_dict())
    assert scheduler.scheduler.last_epoch == STEPS
    assert engine.ledger.predicted_steps == plain.ledger.predicted_steps > 5
