"""There is one set of weights: who may see what, what is undone, and what user code does counts."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning_models import Net, Recorded, Ungated, fit, same, weights
from torch import Tensor
from witness import Witness

from hybrid_predict import HybridPredict, Verdict


@pytest.mark.parametrize("window", [1, 4])
def test_weights_move_between_updates_where_predicted_steps_were_taken_and_nowhere_else(
    window: int,
) -> None:
    callback, witness = Recorded(), Witness()
    fit([callback, witness], max_steps=45, accumulate_grad_batches=window)
    expected = [r.predicted > 0 for r in callback.records for _ in range(window)]
    assert witness.moved == expected
    assert sum(expected) == 15 * window


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
def test_a_checkpoint_inside_a_window_stores_verified_weights_and_moves_none(
    tmp_path: Path,
) -> None:
    stored: list[bool] = []
    left: dict[str, Tensor] = {}  # buffers too

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if not trainer.fit_loop._should_accumulate():
                left.update(weights(module))

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, idx: int) -> None:
            if idx % 4 == 2 and callback.engine._state.unread:
                path, moved = tmp_path / f"{trainer.global_step}.ckpt", weights(module)
                trainer.save_checkpoint(path)
                state = torch.load(path, weights_only=True)["state_dict"]
                verified = same(state, left) and not witness.unmoved(module)
                stored.append(verified and same(weights(module), moved))

    callback, witness = Ungated(), Witness()
    fit([callback, witness, Save()], max_steps=30, accumulate_grad_batches=4)
    assert len(stored) > 5 and all(stored)
    for path in sorted(tmp_path.glob("*.ckpt"))[::3]:
        resumed = Ungated()
        trainer, model = fit([resumed], max_steps=30, accumulate_grad_batches=4,
                             ckpt_path=str(path))  # fmt: skip
        assert trainer.global_step == resumed.ledger.steps == 30
        assert resumed.ledger.full_steps == 20
        assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("window", [1, 3])
def test_an_exception_undoes_predicted_steps_and_leaves_no_hook(
    error: type[BaseException], window: int
) -> None:
    class Broken(Net):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            if callback.engine._state.unread and self.batches >= 20 * window:
                raise error("stop here")

    witness, callback, model = Witness(), Ungated(), Broken()
    with pytest.raises((error, SystemExit)):
        fit([callback, witness], model, max_steps=90, accumulate_grad_batches=window)
    assert witness.unmoved(model)
    assert any(witness.moved)
    assert not model.trainer.optimizers[0]._optimizer_step_pre_hooks
    assert len(model.trainer.optimizers[0]._optimizer_step_post_hooks) == 1  # the witness's


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("extra", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}])
@pytest.mark.parametrize(
    "mode", [{"enabled": False}, {"shadow": True}, {"updates": {}, "speedup": 1}], ids=str
)
def test_switched_off_or_in_shadow_training_is_bit_identical(
    tmp_path: Path, mode: dict[str, Any], extra: dict[str, Any], precision: str
) -> None:
    tables, ends, states = [], [], []
    for name, callbacks in (("plain", []), ("hybrid", [Ungated(**mode)])):
        logger = CSVLogger(tmp_path, name)
        trainer, model = fit(callbacks, max_steps=30, logger=logger, precision=precision, **extra)
        logger.save()
        with Path(logger.log_dir, "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        own = [{k: v for k, v in row.items() if "hybrid_predict" not in k} for row in rows]
        tables.append([row for row in own if row["train_loss_step"] or row["val_loss"]])
        ends.append(weights(model))
        states.append(torch.get_rng_state())
        assert trainer.global_step == 30
    assert tables[0] == tables[1] != []
    assert same(*ends)
    assert torch.equal(*states)


class AtPredicted:
    """The first batches of the first verifying steps, as ``nan_at`` of a net."""

    def __init__(self, callback: HybridPredict, count: int) -> None:
        self.callback, self.count = callback, count
        self.spoiled: list[int] = []

    def __contains__(self, batch: int) -> bool:
        engine = self.callback.engine
        verifying = engine is not None and engine.in_step and engine._state.unread > 0
        number = engine.ledger.full_steps + 1 if verifying else 0
        if not verifying or number in self.spoiled or len(self.spoiled) == self.count:
            return False
        self.spoiled.append(number)
        return True


def adamw(module: Net, **kwargs: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, **kwargs)


def scaler() -> list[MixedPrecision]:
    return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))]


UNDONE: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "plain": ({}, dict),
    "fused": ({"fused": True}, dict),
    "window": ({}, lambda: {"accumulate_grad_batches": 2}),
    "clipped": ({"fused": True}, lambda: {"gradient_clip_val": 0.5}),
    "bf16-mixed": ({}, lambda: {"precision": "bf16-mixed"}),
    "bf16-mixed, fused": ({"fused": True}, lambda: {"precision": "bf16-mixed"}),
    "16-mixed": ({}, lambda: {"plugins": scaler()}),
    "16-mixed, fused": ({"fused": True}, lambda: {"plugins": scaler()}),
}


@pytest.mark.parametrize("name", UNDONE)
def test_a_broken_batch_right_after_predicted_steps_leaves_no_trace(name: str) -> None:
    options, more = UNDONE[name]
    states: list[Any] = []

    class Spoiled(Net):
        def configure_optimizers(self) -> Any:
            return adamw(self, **options)

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if not trainer.fit_loop._should_accumulate():
                state = trainer.optimizers[0].state_dict()
                states.append(copy.deepcopy((weights(module), state)))

    callback, model = Recorded(), Spoiled()
    model.nan_at = AtPredicted(callback, 2)
    trainer, _ = fit([callback, Watch()], model, max_steps=48, **more())
    undone = [r.read_step for r in callback.records if r.verdict is Verdict.UNDONE]
    assert undone == model.nan_at.spoiled and len(undone) == 2
    assert callback.ledger.undone_steps == 2
    assert callback.ledger.predicted_steps + callback.ledger.full_steps == 48
    assert trainer.global_step == 48
    for step in undone:
        torch.testing.assert_close(states[step - 1], states[step - 2], rtol=0, atol=0)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_broken_batch_in_an_ordinary_step_is_the_users_own() -> None:
    model = Net(nan_at={0})
    fit([Ungated()], model, max_steps=12)
    assert all(torch.isnan(p).any() for p in model.parameters())


MASK = (torch.arange(256).reshape(16, 16) % 5 > 0).float()


def normalise(weight: Tensor) -> None:
    with torch.no_grad():
        weight.div_(weight.norm(dim=0, keepdim=True))


def clamp(weight: Tensor) -> None:
    with torch.no_grad():
        weight.clamp_(-0.1, 0.1)


def mask(weight: Tensor) -> None:
    weight.data *= MASK


class Edited(Net):
    """Edits a hidden matrix in one of its hooks.

    Args:
        edit: What is done to the weight.
        place: In which hook.
    """

    def __init__(self, edit: Callable[[Tensor], None], place: str) -> None:
        super().__init__()
        self.edit, self.place = edit, place
        self.losses: list[float] = []
        if place == "forward":
            self.net[4].register_forward_pre_hook(lambda layer, _: edit(layer.weight))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.place == "on_train_batch_start":
            self.edit(self.net[4].weight)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.place == "training_step":
            self.edit(self.net[4].weight)
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        return loss


EDITS = [
    (normalise, "on_train_batch_start"), (normalise, "training_step"),
    (clamp, "training_step"), (mask, "forward"), (clamp, "forward"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "place"), EDITS)
def test_weights_that_the_module_edits_in_a_step_train_as_in_plain_training(
    edit: Callable[[Tensor], None], place: str
) -> None:
    models = []
    for callbacks in ([], [Ungated()]):
        _, model = fit(callbacks, Edited(edit, place), max_steps=90 if callbacks else 60)
        models.append(model)
    plain, hybrid = models
    assert len(plain.losses) == len(hybrid.losses) == 60
    assert sum(hybrid.losses[-10:]) < 1.5 * sum(plain.losses[-10:])
    for p, q in zip(plain.parameters(), hybrid.parameters(), strict=True):
        assert q.abs().max() < 2.5 * p.abs().max()
    kept = hybrid.net[4].weight.detach().clone()
    edit(hybrid.net[4].weight)
    assert (hybrid.net[4].weight - kept).abs().max() < 0.1  # one update away from edited


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end"])
def test_no_update_of_an_optimizer_that_takes_over_in_mid_run_is_lost(hook: str) -> None:
    made: list[dict[str, Tensor]] = []
    kept: list[bool] = []

    class Replace(Callback):
        def replace(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
            if trainer.global_step >= 15 and not made:
                new = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
                new.register_step_post_hook(lambda *_: made.append(weights(module)))
                trainer.strategy.optimizers = [new]

    class Kept(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if made:
                kept.append(all(torch.equal(p, made[-1][n]) for n, p in module.named_parameters()))

    setattr(Replace, hook, Replace.replace)
    callback = Recorded()
    trainer, _ = fit([callback, Replace(), Kept()], Net("none"), max_steps=45)
    assert trainer.global_step == callback.ledger.steps == 45
    # The new optimizer's own hook comes before the plug-in's, which corrects from the next step on.
    assert len(made) == len(kept) > 15
    later = [torch.equal(a["net.4.weight"], b["net.4.weight"])
             for a, b in pairwise(made)]  # fmt: skip
    assert not any(later)
    assert [e["reason"] for e in callback.ledger.events].count("the optimizer was replaced") == 1
    assert sum(r.predicted for r in callback.records[-15:]) > 3


def test_a_layer_frozen_on_the_way_stays_where_it_is() -> None:
    class Freeze(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step >= 15:
                module.net[4].requires_grad_(False)

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if not module.net[4].weight.requires_grad:
                frozen.append(module.net[4].weight.detach().clone())

    frozen: list[Tensor] = []
    fit([Ungated(), Freeze()], max_steps=45)
    assert len(frozen) > 15
    assert all(torch.equal(weight, frozen[0]) for weight in frozen[1:])
