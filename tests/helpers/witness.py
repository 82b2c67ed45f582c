"""A callback that knows the weights that every update has left."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.ranks import fsdp, shards
from hybrid_predict.step import Step


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters by name; FSDP2 shows whole copies after a validation, and here its shards."""
    for part in fsdp.modules(module):
        part.reshard()
    return dict(module.named_parameters())


def verifies(plugin: Any) -> bool:
    """Whether a callback's open full step verifies predicted steps."""
    step = plugin.engine and plugin.engine._step
    return step is not None and step.predicted > 0


def judged_losses(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The losses that verdicts go by, from now on."""
    seen = []
    judge = Step.judge

    def judged(step: Step, *args: Any) -> None:
        judge(step, *args)
        seen.append(step.loss)

    monkeypatch.setattr(Step, "judge", judged)
    return seen


class Witness(Callback):
    """Compares the weights that hooks see with those that the last update has left.

    Listed after the plug-in, so that its optimizer hooks come after the plug-in's own.
    """

    def __init__(self) -> None:
        self.watched: tuple[str, ...] = ()
        self.left: dict[str, Tensor] = {}
        self.seen: dict[str, list[bool]] = {}
        self.moved: list[bool] = []

    def whole(self, module: nn.Module) -> dict[str, Tensor]:
        """The weights that the last update has left, unsharded."""
        now = parameters(module)
        return {name: shards.full_tensor(self.left[name], now[name]) for name in sorted(self.left)}

    def unmoved(self, module: nn.Module) -> bool:
        now = parameters(module)
        return all(torch.equal(shards.local(now[k]), p) for k, p in self.left.items() if k in now)

    def _look(self, hook: str, module: nn.Module) -> None:
        if self.left and (not self.watched or hook in self.watched):
            self.seen.setdefault(hook, []).append(self.unmoved(module))

    def _learn(self, module: nn.Module, optimizer: Optimizer) -> None:
        named = parameters(module)
        with_gradient = {
            id(p): p.grad is not None for group in optimizer.param_groups for p in group["params"]
        }
        if not any(with_gradient.values()):  # nothing has updated
            return
        new = named.keys() - self.left.keys()
        updated = {k for k, p in named.items() if id(p) in with_gradient} | new
        self.left |= {k: shards.local(named[k]).clone() for k in updated}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(lambda o, *_: self._learn(module, o))

    def on_before_backward(self, trainer: Any, module: L.LightningModule, loss: Any) -> None:
        self.moved.append(bool(self.left) and not self.unmoved(module))

    def on_train_batch_end(self, trainer: Any, module: L.LightningModule, *args: Any) -> None:
        if not trainer.fit_loop._should_accumulate():
            self._look("batch end", module)

    def on_validation_start(self, trainer: Any, module: L.LightningModule) -> None:
        self._look("validation", module)

    def on_train_epoch_end(self, trainer: Any, module: L.LightningModule) -> None:
        self._look("epoch end", module)

    def on_train_end(self, trainer: Any, module: L.LightningModule) -> None:
        self._look("end", module)
