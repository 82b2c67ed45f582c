"""Checkpoints that are saved inside a verifying step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning_models import Net, SeededLoader, Ungated, fit, same, weights
from torch import Tensor, nn

HOOKS = (
    "training_step", "on_after_backward", "on_before_zero_grad", "on_before_optimizer_step",
)  # fmt: skip


class Smooth(Net):
    """A net without random numbers and buffers, so that a batch can be repeated."""

    def __init__(self, saver: Saver) -> None:
        super().__init__("none")
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
        self.saver = saver

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.saver.note("training_step", self.trainer, self)
        return loss


class Repeats(SeededLoader):
    """Batches that resume at the one that is under way."""

    def __init__(self) -> None:
        super().__init__(length=12)

    def state_dict(self) -> dict[str, int]:
        epoch, position = divmod(self.epoch * self.length + self.position - 1, self.length)
        return {"epoch": epoch, "position": position}


class Saver(Callback):
    """Saves once, in a hook of a verifying step after the first epoch.

    Args:
        hook: Name of the hook.
        path: Path of the checkpoint.
        plug_in: The callback, or None for plain training.
    """

    def __init__(self, hook: str, path: Path, plug_in: Ungated | None) -> None:
        self.hook, self.path, self.plug_in = hook, path, plug_in
        self.verified: dict[str, Tensor] = {}
        self.moved = self.saved = False

    def note(self, hook: str, trainer: Any, module: Any) -> None:
        engine = self.plug_in and self.plug_in.engine
        due = engine is None or engine._state.unread > 0
        if hook != self.hook or self.saved or trainer.global_step < 14 or not due:
            return
        before = [p.detach().clone() for p in module.parameters()]
        self.moved = any(not torch.equal(p, self.verified[n]) for n, p in module.named_parameters())
        trainer.save_checkpoint(self.path)
        self.saved = True
        assert all(map(torch.equal, before, module.parameters()))

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.verified = self.verified if self.saved else weights(module)

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self.note("on_after_backward", trainer, module)

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.note("on_before_zero_grad", trainer, module)

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.note("on_before_optimizer_step", trainer, module)


LENGTHS = [{"max_steps": 33}, {"max_epochs": 3}]


@pytest.mark.filterwarnings("ignore:.*fewer than max_epochs")
@pytest.mark.parametrize("length", LENGTHS, ids=str)
@pytest.mark.parametrize("plug_in", [True, False], ids=["predicted", "plain"])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_checkpoint_inside_a_step_has_verified_weights_and_resumes_bit_for_bit(
    tmp_path: Path, hook: str, plug_in: bool, length: dict[str, int]
) -> None:
    def run(hook: str, **more: Any) -> tuple[Saver, Smooth, Any]:
        callback = Ungated() if plug_in else None
        saver = Saver(hook, path, callback)
        trainer, model = fit([*filter(None, [callback]), saver], Smooth(saver), train=Repeats(),
                             **length, **more)  # fmt: skip
        return saver, model, trainer

    path = tmp_path / "inside.ckpt"
    saver, model, trainer = run(hook)
    assert saver.saved and saver.moved is plug_in
    assert same(torch.load(path, weights_only=True)["state_dict"], saver.verified)
    _, again, resumed = run("nowhere", ckpt_path=str(path))
    assert resumed.global_step == trainer.global_step
    assert same(weights(again), weights(model))
    if plug_in:
        ledgers = [t.callbacks[0].ledger for t in (trainer, resumed)]
        assert ledgers[0].predicted_steps == ledgers[1].predicted_steps > 3
