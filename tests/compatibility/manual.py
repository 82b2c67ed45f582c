"""Rows: training steps that step their optimizers themselves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_models import Net
from torch import Tensor, optim
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.optim import lr_scheduler

from compatibility.rows import row
from compatibility.subject import EPOCHS, Subject, follows, mlp, refused, train


class Gan(Net):
    """A generator and a discriminator, each with its optimizer and its scheduler."""

    def __init__(self, critic_steps: int = 1, schedule: str = "step") -> None:
        super().__init__("none")
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.net, self.critic = mlp(outputs=8), mlp()
        self.critic_steps, self.schedule = critic_steps, schedule
        self.updates = [0, 0]

    def configure_optimizers(self) -> Any:
        made = [
            optim.Adam(self.net.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            optim.Adam(self.critic.parameters(), lr=2e-3, betas=(0.5, 0.9)),
        ]
        return made, [lr_scheduler.ExponentialLR(o, 0.95) for o in made]

    def _update(self, index: int, loss: Tensor) -> None:
        optimizer = self.optimizers()[index]
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, 1.0, "norm")
        optimizer.step()
        self.updates[index] += 1

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:  # type: ignore[override]
        (x,) = batch
        self.rates[self.trainer.global_step] = self.trainer.optimizers[0].param_groups[0]["lr"]
        generator, critic = self.optimizers()
        noise = torch.randn_like(x)
        self.toggle_optimizer(critic)
        for _ in range(self.critic_steps):
            real, fake = self.critic(x), self.critic(self.net(noise).detach())
            loss = binary_cross_entropy_with_logits(real, torch.ones_like(real))
            self._update(1, loss + softplus(fake).mean())
        self.untoggle_optimizer(critic)
        self.toggle_optimizer(generator)
        self._update(0, softplus(-self.critic(self.net(noise))).mean())
        self.untoggle_optimizer(generator)
        self.batches += 1
        if self.schedule == "step" or self.trainer.is_last_batch:
            for scheduler in self.lr_schedulers():
                scheduler.step()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.critic(self.net(batch[0])).mean())


@row("several optimizers, manual optimization, `max_steps`", {"max_steps": 72})
@row("several optimizers, manual optimization, `max_epochs`", EPOCHS)
def gan(kwargs: dict[str, Any], folder: Path) -> None:
    run = follows(Gan, global_step=72, **kwargs)
    assert run.model.updates == [24, 24]
    hidden = {f"{part}.{k}.weight" for part in ("net", "critic") for k in (0, 2)}
    assert run.predicted == hidden


@row("schedulers stepped once per epoch, manual optimization")
def by_epoch(folder: Path) -> None:
    run = train(Gan(schedule="epoch"), **EPOCHS).sound(36, global_step=72)
    assert [c.scheduler.last_epoch for c in run.trainer.lr_scheduler_configs] == [6, 6]


@row("several updates of one optimizer per step, manual optimization")
def critic_steps(folder: Path) -> None:
    run = follows(partial(Gan, 5), global_step=36 * 6, **EPOCHS)
    assert run.model.updates == [24, 120]


refused(
    "several updates of one optimizer per step, `max_steps`",
    "2 optimizer steps in each, got 6.*max_epochs",
    partial(Gan, 5),
)


class Slow(Gan):
    """Steps its schedulers after every fourth full step."""

    def lr_schedulers(self) -> Any:
        return super().lr_schedulers() if self.batches % 4 == 0 else []


@row("schedulers stepped every few steps, manual optimization")
def slow(folder: Path) -> None:
    run = train(Slow(), **EPOCHS).sound(36, global_step=72)
    assert run.trainer.lr_scheduler_configs[0].scheduler.last_epoch == 24 // 4


class InTurn(Gan):
    """Updates the generator in every third training step only."""

    def _update(self, index: int, loss: Tensor) -> None:
        if index == 1 or self.batches % 3 == 0:
            super()._update(index, loss)


@row("optimizers stepped in turn, manual optimization")
def in_turn(folder: Path) -> None:
    run = train(InTurn(), **EPOCHS)
    run.sound(36, global_step=run.trainer.global_step, full_steps=36 - run.ledger.predicted_steps)
    assert run.model.updates == [-(-run.ledger.full_steps // 3), run.ledger.full_steps]
    assert run.trainer.global_step > 36


refused(
    "optimizers stepped in turn, `max_steps`",
    "2 optimizer steps in each, got 1.*max_epochs",
    InTurn,
)


class Manual(Subject):
    """One optimizer, stepped by the training step after ``every`` batches."""

    def __init__(self, every: int = 1) -> None:
        super().__init__(mlp())
        self.automatic_optimization, self.every = False, every

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        optimizer, loss = self.optimizers(), super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        if (batch_idx + 1) % self.every == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss


@row("one optimizer, manual optimization")
def manual(folder: Path) -> None:
    run = train(Manual()).sound()
    assert all(record.loss is not None for record in run.plugin.records)


refused(
    "accumulation by hand, manual optimization",
    "optimizer steps in each, got 0.*accumulate",
    partial(Manual, 4),
)
