"""Nobody outside a full step sees a forecast, and switched off the plug-in leaves no trace."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from torch import Tensor, nn

from hybrid_predict import (
    FixedHorizon,
    HybridConfig,
    HybridPredict,
    UnsupportedSetupError,
    Verdict,
)
from hybrid_predict.errors import ConfigError
from lightning_models import Net, fit, same, weights

FAR = HybridConfig(horizon=FixedHorizon(updates=3.0), warmup_fraction=0.05)


class Recorder(Callback):
    """Keeps the weights that each hook sees, and the forecast points inside the forward pass."""

    def __init__(self) -> None:
        self.base: dict[str, Tensor] = {}
        self.seen: dict[str, list[bool]] = {}
        self.moved = 0

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.base = weights(module.net)
        self.hook = module.net[0].register_forward_pre_hook(self._forward)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        # After the engine's own hook, which may take the optimizer's update back.
        trainer.optimizers[0].register_step_post_hook(
            lambda *_: self.base.update(weights(module.net))
        )

    def _forward(self, layer: nn.Module, args: Any) -> None:
        if layer.training:
            self.moved += not torch.equal(layer.weight, self.base["0.weight"])

    def _check(self, name: str, module: L.LightningModule) -> None:
        trained = dict(module.net.named_parameters())
        equal = all(torch.equal(p, self.base[k]) for k, p in trained.items())
        self.seen.setdefault(name, []).append(equal)

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self._check("batch end", module)

    def on_validation_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
        self._check("validation", module)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint["state_dict"]
        names = {k for k, _ in module.net.named_parameters()}
        self.seen.setdefault("save", []).append(
            all(torch.equal(saved[f"net.{k}"], self.base[k]) for k in names)
        )

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        self._check("exception", module)


def test_validation_saves_and_callbacks_see_base_weights(tmp_path: Path) -> None:
    recorder = Recorder()
    often = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0), save_top_k=-1)
    fit([HybridPredict(config=FAR), recorder, often], max_steps=60, accumulate_grad_batches=4,
        val_check_interval=3)  # fmt: skip
    assert recorder.moved > 20
    assert {"batch end", "validation", "save"} <= recorder.seen.keys()
    assert all(all(values) for values in recorder.seen.values())


def test_an_average_of_the_weights_is_one_of_base_weights() -> None:
    averaging, recorder = WeightAveraging(), Recorder()
    averages: list[bool] = []

    class Check(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            expected.append(recorder.base["4.weight"])
            average = dict(averaging._average_model.module.named_parameters())["net.4.weight"]
            averages.append(torch.allclose(average, torch.stack(expected).mean(0), atol=1e-6))

    expected: list[Tensor] = []
    fit([HybridPredict(config=FAR), recorder, averaging, Check()], max_steps=40)
    assert recorder.moved > 5
    # The first average is taken at the first step; from then on it is the mean of base weights.
    assert len(averages) > 20
    assert all(averages[2:])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("window", [1, 3])
def test_an_exception_leaves_base_weights_and_no_hook(
    error: type[BaseException], window: int
) -> None:
    class Broken(Net):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            if self.batches >= 40:
                raise error("stop here")

    recorder, callback, model = Recorder(), HybridPredict(config=FAR), Broken()
    kwargs: dict[str, Any] = {"max_steps": 90, "accumulate_grad_batches": window}
    with pytest.raises((error, SystemExit)):
        fit([callback, recorder], model, **kwargs)
    names = dict(model.net.named_parameters())
    assert all(torch.equal(p, recorder.base[k]) for k, p in names.items())
    assert recorder.moved > 0
    assert not model._state_dict_hooks


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("extra", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}])
@pytest.mark.parametrize("mode", [{"enabled": False}, {"shadow": True}], ids=str)
def test_switched_off_or_in_shadow_training_is_bit_identical(
    tmp_path: Path, mode: dict[str, bool], extra: dict[str, Any], precision: str
) -> None:
    rows, ends, states = [], [], []
    for name, callbacks in (("plain", []), ("hybrid", [HybridPredict(**mode)])):
        logger = CSVLogger(tmp_path, name)
        trainer, model = fit(callbacks, max_steps=40, logger=logger, precision=precision, **extra)
        logger.save()
        text = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
        keep = [k for k, c in enumerate(text[0].split(",")) if "hybrid_predict" not in c]
        table = [[line.split(",")[k] for k in keep] for line in text]
        header = sorted(table[0])
        order = [table[0].index(c) for c in header]
        rows.append([r for r in ([line[k] for k in order] for line in table) if any(r[1:])])
        ends.append(weights(model))
        states.append(torch.get_rng_state())
        assert trainer.global_step == 40
    values = [[[c for c in row if c] for row in table[1:]] for table in rows]
    losses = [[row for row in table if len(row) > 2] for table in values]
    assert losses[0] == losses[1] != []
    assert same(*ends)
    assert torch.equal(*states)


def test_warm_up_is_bit_identical() -> None:
    config = HybridConfig(warmup_fraction=0.5)
    seen: list[dict[str, Tensor]] = []
    for callbacks in ([], [HybridPredict(config=config)]):

        class Stop(Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
                if trainer.global_step == 30:
                    seen.append(weights(module))

        fit([*callbacks, Stop()], max_steps=60)
    assert same(*seen)


@pytest.mark.parametrize("window", [1, 2])
def test_broken_batches_at_forecast_points_are_skipped_without_trace(window: int) -> None:
    broken, kept = {40, 44, 48, 52, 56}, {}
    model, callback = Net(nan_at=broken), HybridPredict(config=FAR)

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            kept[module.batches - 1] = weights(module)

    trainer, _ = fit([callback, Watch()], model, max_steps=90, accumulate_grad_batches=window)
    assert callback.ledger.rejected == len(broken)
    assert callback.ledger.full_steps > 60
    assert trainer.global_step == 90
    assert all(torch.isfinite(v).all() for v in weights(model).values())
    for batch in broken:
        ends = [k for k in kept if (k + 1) % window == 0]
        last, skipped = max(k for k in ends if k < batch), min(k for k in ends if k >= batch)
        assert all(
            torch.equal(kept[last][name], kept[skipped][name])
            for name, _ in model.named_parameters()
        )


def test_a_broken_batch_at_base_weights_is_the_users_own() -> None:
    model = Net(nan_at={0})
    fit([HybridPredict(config=FAR)], model, max_steps=12)
    assert all(torch.isnan(p).any() for p in model.parameters())


def test_loss_check_runs_shielded_and_is_counted(tmp_path: Path) -> None:
    checked = HybridConfig(horizon=FixedHorizon(updates=3.0), loss_tolerance=10.0,
                           loss_check_every=5)  # fmt: skip
    plain = HybridPredict(config=FAR)
    guarded = HybridPredict(config=checked)
    _, left = fit([plain], max_steps=60)
    logger = CSVLogger(tmp_path)
    _, right = fit([guarded], max_steps=60, logger=logger)
    assert guarded.ledger.forward_passes > 0
    logged = Path(logger.log_dir, "metrics.csv").read_text().count("\n")
    assert left.batches < right.batches + guarded.ledger.forward_passes
    assert logged < 60 * 3
    assert {v.value for v in Verdict} >= {"accepted", "shrunk", "rejected"}


@pytest.mark.parametrize(
    ("make", "trainer_kwargs", "words"),
    [
        ("lbfgs", {}, "LBFGS"),
        ("plain", {"max_steps": -1, "max_epochs": -1, "max_time": "00:00:00:10"}, "max_steps"),
    ],
)
def test_setups_that_cannot_work_are_refused(
    make: str, trainer_kwargs: dict[str, Any], words: str
) -> None:
    model = Net("none")
    if make == "lbfgs":
        model.configure_optimizers = lambda: torch.optim.LBFGS(model.parameters())  # type: ignore[method-assign]
    with pytest.raises(UnsupportedSetupError, match=words):
        fit([HybridPredict()], model, **{"max_steps": 10, **trainer_kwargs})


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (object(), "single device"),
        (FSDPStrategy(), "ModelParallelStrategy"),
        (DeepSpeedStrategy.__new__(DeepSpeedStrategy), "DeepSpeedStrategy"),
    ],
)
def test_strategies_that_cannot_work_are_refused(strategy: Any, words: str) -> None:
    trainer = SimpleNamespace(strategy=strategy, callbacks=[])
    with pytest.raises(UnsupportedSetupError, match=words):
        HybridPredict().on_train_start(trainer, Net())  # type: ignore[arg-type]


def test_a_configuration_in_the_place_of_the_speedup_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="config="):
        HybridPredict(HybridConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"clock": "wall"},
        {"skip_data": "some"},
        {"speedup": 0.5},
        {"config": HybridConfig(horizon="horizn")},
    ],
    ids=str,
)
def test_bad_arguments_name_themselves(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments)).replace("config", "horizon")):
        HybridPredict(**arguments)


def test_an_epoch_broken_off_before_its_step_ends_at_base_weights() -> None:
    class Stops(Net):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 5 else None

        def on_train_epoch_end(self) -> None:
            seen.append(not callback.engine.mapper.displaced and not callback.engine.in_step)

    seen: list[bool] = []
    callback = HybridPredict(config=FAR, skip_data="none")
    fit([callback], Stops("none"), max_steps=40)
    assert len(seen) > 4
    assert all(seen)


def test_a_layer_frozen_on_the_way_stays_where_it_is() -> None:
    class Freeze(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step >= 30:
                module.net[4].requires_grad_(False)

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if not module.net[4].weight.requires_grad:
                frozen.append(module.net[4].weight.detach().clone())

    frozen: list[Tensor] = []
    fit([HybridPredict(config=FAR), Freeze()], max_steps=90)
    assert len(frozen) > 20
    assert all(torch.equal(weight, frozen[0]) for weight in frozen[1:])
