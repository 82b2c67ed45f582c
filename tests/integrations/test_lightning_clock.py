"""The Trainer's counters tell steps, predicted ones included, and schedules keep their shape."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    ModelCheckpoint,
)
from lightning_models import Net, Ungated, fit, loader, same, weights
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)


class Epochs(Net):
    """Loads epochs of these lengths, and has a scheduler of either interval."""

    def __init__(self, sizes: Sequence[int], frequencies: Sequence[int] = (1, 1)) -> None:
        super().__init__("none")
        self.net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
        self.sizes, self.frequencies = sizes, frequencies
        self.validated: Counter[int] = Counter()

    def train_dataloader(self) -> Any:
        return loader(self.sizes[min(self.trainer.current_epoch, len(self.sizes) - 1)])

    def on_validation_end(self) -> None:
        self.validated[self.trainer.current_epoch] += 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
        return [optimizer], [
            {"scheduler": ExponentialLR(optimizer, 0.99), "interval": name, "frequency": count}
            for name, count in zip(("step", "epoch"), self.frequencies, strict=True)
        ]


RELOADED: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0}


def random_run(seed: int) -> tuple[Epochs, Epochs, float, dict[str, Any]]:
    """Twice the same module, a speedup, and options of the Trainer.

    Every epoch and every interval between validations has room for the predicted steps of a full
    step.
    """
    draw = random.Random(seed)
    speedup = draw.choice([1.2, 1.5, 2.0, 3.0])
    most = math.ceil(2 * (speedup - 1))  # predicted steps in a row
    window = draw.randint(1, 3)
    steps = [draw.randint(2 * most + 2, 2 * most + 9) for _ in range(draw.randint(2, 4))]
    sizes = [count * window - draw.randrange(window) for count in steps]
    frequencies = draw.randint(1, 3), draw.randint(1, 2)
    options = {**RELOADED, "accumulate_grad_batches": window}
    if draw.random() < 0.5:
        options["val_check_interval"] = 2 * (most + draw.randint(1, 3)) * window
        options["check_val_every_n_epoch"] = None
    return Epochs(sizes, frequencies), Epochs(sizes, frequencies), speedup, options


def positions(trainer: Any) -> list[int]:
    return [config.scheduler.last_epoch for config in trainer.lr_scheduler_configs]


@pytest.mark.parametrize("seed", range(6))
def test_a_run_of_any_epochs_counts_what_the_plain_run_does(seed: int) -> None:
    plain_net, net, speedup, options = random_run(seed)
    skip_data: Any = ("draw", "tail")[seed % 2]
    options = {**options, "max_epochs": len(net.sizes)}
    plain, _ = fit([], plain_net, **options)
    callback = Ungated(speedup, updates={}, warmup_steps=1 + seed % 4, skip_data=skip_data)
    trainer, _ = fit([callback], net, **options)
    assert trainer.global_step == callback.ledger.steps == plain.global_step
    assert callback.ledger.full_steps == len(net.rates) < plain.global_step
    assert positions(trainer) == positions(plain)
    assert net.validated == plain_net.validated
    assert net.rates.items() <= plain_net.rates.items()
    assert trainer.current_epoch == plain.current_epoch


@pytest.mark.parametrize("skip_data", ["draw", "tail", "none"])
def test_skip_data_decides_which_batches_are_seen(skip_data: Any) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, idx: int) -> None:
            seen.append(round(float(batch[0].sum()) * 1000))

    callback = Ungated(skip_data=skip_data)
    limits = {"max_steps": 96} if skip_data == "none" else {"max_epochs": 6}
    trainer, _ = fit([callback, Watch()], **limits)
    order = [round(float(b[0].sum()) * 1000) for b in loader()]
    assert trainer.global_step == 96
    assert callback.ledger.full_steps == len(seen) == 64
    in_order = [order.index(x) for x in seen]
    head = set(in_order) <= set(range(14))
    assert head == (skip_data == "tail")
    assert (in_order == [k % 16 for k in range(64)]) == (skip_data == "none")


class Loads(Dataset[Any]):
    """48 samples; it counts how many were loaded."""

    def __init__(self) -> None:
        self.loaded = 0
        self._data = torch.randn(48, 8, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return 48

    def __getitem__(self, at: Any) -> Any:
        self.loaded += 1
        return (self._data[at],)


@pytest.mark.parametrize(
    ("sampler", "skips"),
    [
        (RandomSampler, True),
        (SequentialSampler, False),
        (lambda data: DistributedSampler(data, 1, 0, shuffle=False), False),
    ],
    ids=["random", "sequential", "distributed, in order"],
)
def test_batches_of_predicted_steps_are_not_loaded_if_the_loader_shuffles(
    sampler: Any, skips: bool
) -> None:
    data = Loads()
    callback = Ungated()
    train = DataLoader(data, 4, sampler=sampler(data))
    trainer, _ = fit([callback], train=train, max_epochs=6)
    assert trainer.global_step == callback.ledger.steps == 72
    assert callback.ledger.full_steps == 48
    assert data.loaded == 4 * (48 if skips else 72)


@pytest.mark.parametrize(("every", "speedup"), [(1, 1.5), (10, 3.0)])
def test_checkpoints_come_at_the_first_step_that_reaches_each_multiple(
    tmp_path: Path, every: int, speedup: float
) -> None:
    checkpoint = ModelCheckpoint(
        tmp_path, "{step}", every_n_train_steps=every, save_top_k=-1, save_on_train_epoch_end=False
    )
    _, model = fit([Ungated(speedup=speedup), checkpoint], max_steps=60)
    saved = sorted(int(p.stem.split("=")[1]) for p in tmp_path.glob("*.ckpt"))
    steps = sorted({*model.rates, 60} - {0})
    reached = {next(s for s in steps if s >= m) // every * every for m in range(every, 61, every)}
    assert saved == sorted(reached)
    assert every < 7 or saved == list(range(every, 61, every))
    _, bare = fit([Ungated(speedup=speedup)], max_steps=60)
    assert same(weights(model), weights(bare))


class Stream(IterableDataset[Any]):
    """So many samples in every epoch."""

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        for _ in range(38):
            yield [torch.randn(8, generator=generator)]


def test_epochs_that_end_before_their_limit_are_those_of_the_plain_run() -> None:
    def run(*callbacks: Any) -> tuple[Any, Net]:
        limits = {"max_epochs": 6, "limit_train_batches": 16}
        return fit([*callbacks], Net("step", "epoch"), train=DataLoader(Stream(), 4), **limits)

    plain, plain_net = run()
    hybrid = Ungated(warmup_steps=4, cooldown_steps=2)
    trainer, net = run(hybrid)
    assert trainer.global_step == hybrid.ledger.steps == plain.global_step > 20
    assert hybrid.ledger.full_steps == len(net.rates) < 0.85 * plain.global_step
    assert net.rates.items() <= plain_net.rates.items()


class Ones(Epochs):
    """Has a loss of 1 in every batch."""

    def training_step(self, *batch: Any) -> torch.Tensor:
        return 0.0 * super().training_step(*batch) + 1.0


def test_the_loss_of_a_shorter_window_is_the_mean_of_its_batches_too(tmp_path: Path) -> None:
    plugin = Ungated(speedup=1, log_dir=tmp_path)
    fit([plugin], Ones([6, 6]), train=None, max_epochs=2, accumulate_grad_batches=4, **RELOADED)
    assert [row.loss for row in plugin.history.rows] == pytest.approx([1.0] * 4)
