"""What is searched: tasks of the benchmark in a LightningModule, and a published package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import lightning.pytorch as pl  # noqa: TID253
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.clients import chemprop
from benchmarks.optimizers import Rates, adamw
from benchmarks.rates.plan import best_rates
from benchmarks.search import TASK_SUBJECTS
from benchmarks.tasks import TASKS, Task
from hybrid_predict.audit import AuditArm, AuditConfig

METRIC = "val_loss"

EPOCHS = 30
"""Of the package's training: every candidate divides them."""


@final
class TaskSubject:
    """A task of the benchmark, half as long, at the rate that is best for plain training of it."""

    def __init__(self, name: str, steps: int | None = None) -> None:
        self._task = replace(TASKS[name], steps=steps or TASKS[name].steps // 2)

    @property
    def rate(self) -> float:
        """The rate that the benchmark's grid chose for plain training of the whole length."""
        return best_rates()[self._task.name]

    def make_run(self, arm: AuditArm) -> Any:
        """The task's recipe over the arm's steps; validated at the end only."""
        task, steps = self._task, arm.scaled(self._task.steps)
        trainer = arm.trainer(
            max_steps=task.steps,
            gradient_clip_val=task.recipe.gradient_clip,
            accelerator="cpu",
            inference_mode=False,  # some metrics are made of derivatives
            num_sanity_val_steps=0,
            check_val_every_n_epoch=None,
            val_check_interval=steps,
        )
        data: list[Any] = [_Batches(task, arm.seed), [0]]
        loaders = [DataLoader(part, batch_size=None) for part in data]
        return trainer, _Module(task, self.rate, steps, arm.seed), tuple(loaders)

    def to_dict(self) -> dict[str, Any]:
        """The task, and its rate."""
        task = self._task.to_dict()
        return {
            "title": self._task.title,
            "metric": task["metric"],
            "rate": self.rate,
            "task": task,
        }


@final
class ChempropSubject:
    """The network of chemprop as the benchmark of clients trains it, on one split of the data."""

    def make_run(self, arm: AuditArm) -> Any:
        """The package's default recipe, which takes its length from the Trainer."""
        trainer = arm.trainer(max_epochs=EPOCHS, accelerator="cpu", enable_checkpointing=False)
        return trainer, chemprop.model(), chemprop.loaders(0, arm.seed)

    def to_dict(self) -> dict[str, Any]:
        """What the client says of itself."""
        about = chemprop.CLIENT.to_dict()
        title = f"{about['package']} {about['version']}: {about['trains']}, {EPOCHS} epochs"
        return {"title": title, "metric": about["metric"], "client": {**about, "length": EPOCHS}}


@final
class _Batches(IterableDataset[Any]):
    """A task's batches without end."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    def __iter__(self) -> Iterator[Any]:
        return self._task.batches(self._seed)


@final
class _Module(pl.LightningModule):
    """A task's model under its plain recipe."""

    def __init__(self, task: Task, rate: float, steps: int, seed: int) -> None:
        super().__init__()
        self._task, self._rate, self._steps = task, rate, steps
        self.net = task.model(seed)

    def training_step(self, batch: Any, index: int) -> Tensor:
        """The training loss."""
        return self._task.loss(self.net, batch)

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the task's metric; the batch means nothing."""
        self.log(METRIC, self._task.final_loss(self.net), batch_size=1)

    def configure_optimizers(self) -> Any:
        """AdamW and the recipe's schedule, by steps."""
        recipe = self._task.recipe
        (optimizer,) = adamw(self.net, recipe, Rates(self._rate), self._steps)
        schedule = LambdaLR(optimizer, recipe.factor(self._steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


Subject = TaskSubject | ChempropSubject
"""A training with a Trainer: trainer, model and data of an arm, and a description."""


def subject(name: str) -> Subject:
    """Return a subject by its name."""
    return TaskSubject(name) if name in TASK_SUBJECTS else ChempropSubject()


def configured(seeds: int, speedups: Sequence[float] | None = None) -> AuditConfig:
    """Return the configuration of a search; its candidates are those of an audit."""
    chosen = tuple(speedups or AuditConfig().speedups)
    return AuditConfig(metric=METRIC, seeds=seeds, speedups=chosen, mlflow=False)
