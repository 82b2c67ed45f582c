"""Small LightningModules, loaders and Trainers for the integration tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import lightning.pytorch
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from hybrid_predict import HybridPredict, MomentumPredictor, StepRecord
from hybrid_predict.ranks import processes

EVERYWHERE: dict[str, Callable[[], Any]] = {}
"""Makes further arguments of every Trainer; checks on several ranks set a strategy."""

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], Any]] = {
    "step": lambda o, n: lr_scheduler.StepLR(o, 7, gamma=0.5),
    "cosine": lambda o, n: lr_scheduler.CosineAnnealingLR(o, n),
}


class Ungated(HybridPredict):
    """Takes the predicted steps that are planned, whatever their skill, for runs of few steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not kwargs.keys() & {"config", "predictors"}:
            kwargs["predictors"] = {"hidden": MomentumPredictor(gated=False)}
        super().__init__(*args, **kwargs)


class Recorded(Ungated):
    """Keeps the records of its full steps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.records: list[StepRecord] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        if self.engine is None:
            return
        after_step = self.engine.after_step

        def recorded(*args: Any, **kwargs: Any) -> StepRecord:
            self.records.append(after_step(*args, **kwargs))
            return self.records[-1]

        self.engine.after_step = recorded  # type: ignore[method-assign]


class StopAt(lightning.pytorch.Callback):
    """Asks a Trainer to stop at a global step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        trainer.should_stop |= trainer.global_step >= self.step


class AnyNet:
    """A net with batch norm and dropout that notes what it sees, for any Lightning package."""

    def __init__(
        self,
        schedule: str = "cosine",
        interval: str = "step",
        frequency: int = 1,
        nan_at: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1),
            nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1),
        )  # fmt: skip
        self.schedule, self.interval, self.frequency = schedule, interval, frequency
        self.nan_at = nan_at
        self.batches = 0
        self.rates: dict[int, float] = {}

    def loss(self, batch: list[Tensor]) -> Tensor:
        (x,) = batch
        return (self.net(x) - x.sum(1, keepdim=True).sin()).square().mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.rates[self.trainer.global_step] = self.trainer.optimizers[0].param_groups[0]["lr"]
        loss = self.loss(batch)
        if self.batches in self.nan_at:
            loss = loss * float("nan")
        self.batches += 1
        if self.trainer.loggers:  # to log takes a fifth of a short run
            self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.schedule == "none":
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        length = steps if self.interval == "step" else max(6, self.trainer.max_epochs or 0)
        scheduler = SCHEDULES[self.schedule](optimizer, length)
        entry = {"scheduler": scheduler, "interval": self.interval, "frequency": self.frequency}
        return {"optimizer": optimizer, "lr_scheduler": entry}


class Net(AnyNet, lightning.pytorch.LightningModule):
    """The same of ``lightning``."""


class SeededLoader:
    """Batches that depend on epoch, position and rank only, and that resumes where it was."""

    def __init__(self, length: int = 16, size: int = 16) -> None:
        self.length, self.size = length, size
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[Tensor]]:
        for position in range(self.position, self.length):
            seed = 1000 * self.epoch + position + 10**6 * processes.rank()
            generator = torch.Generator().manual_seed(seed)
            self.position = (position + 1) % self.length
            self.epoch += not self.position
            yield [torch.randn(self.size, 8, generator=generator)]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def loader(batches: int = 16) -> DataLoader[Any]:
    """So many batches for every rank, among which Lightning divides them."""
    rows = 16 * batches * processes.size()
    data = torch.randn(rows, 8, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(data), batch_size=16)


def fit(
    callbacks: list[Any],
    model: Any = None,
    *,
    package: Any = lightning.pytorch,
    train: Any = None,
    seed: int = 0,
    ckpt_path: str | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Train quietly and return trainer and model."""
    package.seed_everything(seed, verbose=False)
    model = model or Net()
    quiet: dict[str, Any] = {
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
        "accelerator": "cpu", "log_every_n_steps": 1, "enable_checkpointing": False,
    }  # fmt: skip
    if any(isinstance(c, package.callbacks.Checkpoint) for c in callbacks):
        quiet["enable_checkpointing"] = True
    everywhere = {name: make() for name, make in EVERYWHERE.items()}
    trainer = package.Trainer(callbacks=callbacks, **{**quiet, **everywhere, **kwargs})
    brings_its_own = is_overridden("train_dataloader", model, package.LightningModule)
    train = train if train is not None or brings_its_own else loader()
    trainer.fit(model, train, loader(2), ckpt_path=ckpt_path)
    return trainer, model


def weights(model: nn.Module) -> dict[str, Tensor]:
    present = model.state_dict(keep_vars=True)
    return {name: value.detach().clone() for name, value in present.items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
