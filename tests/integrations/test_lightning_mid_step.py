"""Checkpoints that are saved inside a full step which verifies predicted steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights
from torch import Tensor, nn
from witness import verifies

PLACES = [
    ("training_step", {"max_steps": 33}),
    ("on_after_backward", {"max_epochs": 3}),
    ("on_before_zero_grad", {"max_steps": 33, "accumulate_grad_batches": 3}),
    ("on_before_optimizer_step", {"max_steps": 33}),
]


class Smooth(Net):
    """A net without random numbers and buffers, so that a batch can be repeated."""

    def __init__(self, saver: Saver) -> None:
        super().__init__("none")
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
        self.saver = saver

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.saver.hook == "training_step":
            self.saver.save(self.trainer, self)
        return loss


class Repeats(SeededLoader):
    """Batches that resume at the one that is under way."""

    def __init__(self) -> None:
        super().__init__(length=12)

    def state_dict(self) -> dict[str, int]:
        epoch, position = divmod(self.epoch * self.length + self.position - 1, self.length)
        return {"epoch": epoch, "position": position}


class Saver(Callback):
    """Saves once, in a hook of a verifying step after the first epoch."""

    def __init__(self, hook: str, path: Path, plugin: Ungated) -> None:
        self.hook, self.path, self.plugin = hook, path, plugin
        self.verified: dict[str, Tensor] = {}
        self.saved = False
        setattr(self, hook, self.save)

    def save(self, trainer: Any, module: Any, *args: Any) -> None:
        if self.saved or trainer.global_step < 14 or not verifies(self.plugin):
            return
        assert any(not torch.equal(p, self.verified[n]) for n, p in module.named_parameters())
        trainer.save_checkpoint(self.path)
        self.saved = True
        assert same(weights(module), self.verified)

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        if not self.saved and not trainer.fit_loop._should_accumulate():
            self.verified = weights(module)


@pytest.mark.filterwarnings("ignore:You're resuming from a check")
@pytest.mark.parametrize(("hook", "length"), PLACES)
def test_a_checkpoint_inside_a_step_has_verified_weights_and_resumes_as_if_before_it(
    tmp_path: Path, hook: str, length: dict[str, int]
) -> None:
    def run(hook: str, **more: Any) -> tuple[Saver, Smooth]:
        torch.manual_seed(0)
        saver = Saver(hook, path, Ungated())
        model = Smooth(saver)
        fit([saver.plugin, saver], model, train=Repeats(), **length, **more)
        return saver, model

    path = tmp_path / "inside.ckpt"
    saver, _ = run(hook)
    assert saver.saved and saver.plugin.ledger.undone_steps == 1
    assert same(torch.load(path, weights_only=True)["state_dict"], saver.verified)
    resumed, again = run("nowhere", ckpt_path=str(path))
    whole, model = run("nowhere")
    assert again.trainer.global_step == model.trainer.global_step
    assert whole.plugin.ledger.predicted_steps == resumed.plugin.ledger.predicted_steps > 3
    # Gradients of an accumulation window are not saved.
    exact = "accumulate_grad_batches" not in length
    assert same(weights(again), weights(model)) or not exact
