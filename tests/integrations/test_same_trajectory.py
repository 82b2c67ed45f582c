"""The same seed, model and data give the same weights in every loop that there is an adapter for.

Each way trains the run of `wrapped_loops`; docs/loops.md has the table. For Hugging Face see
`test_huggingface`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.fabric import Fabric
from loops import same_bits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from wrapped_loops import STEPS, batch, config, loss_of, parts, plain_loop

from hybrid_predict import (
    HybridEngine,
    HybridPredict,
    HybridTrainer,
    OptimizerWrapper,
    SavingsLedger,
    TorchModel,
)
from hybrid_predict.errors import UnsupportedSetupError

Trained = tuple[nn.Module, SavingsLedger, int]
"""The net, the run's ledger, and the step at which the schedule ended."""


def in_the_trainer_of_the_package() -> Trained:
    net, optimizer, scheduler = parts()
    model, wrapper = TorchModel(net, loss_of), OptimizerWrapper(optimizer)
    trainer = HybridTrainer(model, wrapper, config(), scheduler=scheduler)
    while not trainer.done:
        trainer.step(batch(trainer.ledger.full_steps))
    return net, trainer.ledger, scheduler.last_epoch


class FabricRun:
    """The run of the plain loop with Fabric, which can stop and be saved."""

    def __init__(self) -> None:
        self.fabric = Fabric(accelerator="cpu", devices=1)
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
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler,
                "engine": self.engine}  # fmt: skip


def in_fabric() -> Trained:
    run = FabricRun()
    return run.train(), run.engine.ledger, run.scheduler.last_epoch


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


def test_fabric_saves_and_loads_the_engine_among_the_rest(tmp_path: Path) -> None:
    first, resumed = FabricRun(), FabricRun()
    first.train(14)
    first.fabric.save(tmp_path / "checkpoint", first.state())
    resumed.fabric.load(tmp_path / "checkpoint", resumed.state())
    assert same_bits(resumed.train().state_dict(), first.train().state_dict())


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


@pytest.mark.parametrize("framework", ["fabric", "accelerate"])
def test_the_optimizer_that_a_framework_wraps_is_asked_for(
    accelerator: Any, framework: str
) -> None:
    net, optimizer, _ = parts()
    if framework == "fabric":
        wrapped = Fabric(accelerator="cpu", devices=1).setup(net, optimizer)
    else:
        wrapped = accelerator(cpu=True).prepare(net, optimizer)
    with pytest.raises(UnsupportedSetupError, match="inner optimizer"):
        HybridEngine(*wrapped, config())
