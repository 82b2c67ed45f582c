"""The Trainer's counters tell steps, predicted ones included, and schedules keep their shape."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning_models import Net, Ungated, fit, loader, same, weights
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from hybrid_predict import HybridPredict


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


@pytest.mark.parametrize("seed", range(10))
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


@pytest.mark.parametrize("seed", range(20, 24))
def test_a_run_of_any_epochs_ends_at_the_steps_that_bound_it(seed: int) -> None:
    plain_net, net, speedup, options = random_run(seed)
    skip_data: Any = ("draw", "none")[seed % 2]
    limit = math.ceil(0.6 * sum(net.sizes) / options["accumulate_grad_batches"])
    plain, _ = fit([], plain_net, max_steps=limit, **options)
    callback = Ungated(speedup, updates={}, skip_data=skip_data)
    trainer, _ = fit([callback], net, max_steps=limit, **options)
    assert trainer.global_step == callback.ledger.steps == plain.global_step == limit
    assert callback.ledger.full_steps == len(net.rates)
    frequency = net.frequencies[0]
    assert frequency > 1 or positions(trainer)[0] == positions(plain)[0] == limit


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
        (lambda data: WeightedRandomSampler([1.0] * len(data), len(data)), True),
        (lambda data: DistributedSampler(data, 1, 0), True),
        (lambda data: DistributedSampler(data, 1, 0, shuffle=False), False),
    ],
    ids=["random", "sequential", "weighted", "distributed", "distributed, in order"],
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


def validated(*callbacks: Any, **limit: int) -> list[int]:
    """The global steps of the validations of a run that ends when patience does."""
    steps: list[int] = []

    class Watched(Net):
        def on_validation_end(self) -> None:
            steps.append(self.trainer.global_step)

    stop = EarlyStopping("val_loss", min_delta=1e9, patience=2)
    fit([*callbacks, stop], Watched("none"), num_sanity_val_steps=0, **limit)
    return steps


def test_patience_is_counted_in_the_validations_of_the_plain_run_where_epochs_bound_it() -> None:
    plain = validated(max_epochs=8)
    hybrid = validated(Ungated(speedup=1.5), max_epochs=8)
    assert len(hybrid) == len(plain) == 3
    assert all(abs(a - b) <= 1 for a, b in zip(plain, hybrid, strict=True))


class Stream(IterableDataset[Any]):
    """So many samples, or whole batches, in every epoch."""

    def __init__(self, count: int, *shape: int) -> None:
        self.count, self.shape = count, (*shape, 8)

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(3)
        for _ in range(self.count):
            yield [torch.randn(*self.shape, generator=generator)]


class Claims(Stream):
    """A stream that says how long it is."""

    def __init__(self, count: int, claimed: int, *shape: int) -> None:
        super().__init__(count, *shape)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed


class Sizes(BatchSampler):
    """Epochs of one batch more each time, and a length that follows them."""

    def __init__(self) -> None:
        super().__init__(SequentialSampler(range(64)), 4, drop_last=False)
        self.epoch = 0

    def __len__(self) -> int:
        return 8 + self.epoch

    def __iter__(self) -> Any:
        yield from ([4 * k, 4 * k + 1] for k in range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 6 - epoch


class Changes(Callback):
    """Changes a Trainer at the start of its epochs."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.change = change

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.change(trainer)


class Ends(Net):
    """Ends its second epoch early."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.trainer.current_epoch == 1 and batch_idx >= 12 else None


def more_epochs(trainer: Any) -> None:
    trainer.fit_loop.max_epochs = 6 if trainer.current_epoch >= 3 else 4


def by_epoch() -> Net:
    return Net("step", "epoch")


SIX: dict[str, Any] = {"max_epochs": 6}
RUNS_THAT_CHANGE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "a batch sampler": (by_epoch, lambda: DataLoader(Loads(), batch_sampler=Sizes()), SIX),
    "windows by schedule": (
        by_epoch, loader, {**SIX, "callbacks": [GradientAccumulationScheduler({0: 4, 2: 1, 4: 3})]},
    ),
    "an epoch that the module ends": (
        partial(Ends, "step", "epoch"), partial(loader, 40), {"max_epochs": 3},
    ),
    "more epochs": (by_epoch, loader, {"max_epochs": 4, "callbacks": [Changes(more_epochs)]}),

    "a stream that ends before its limit": (
        by_epoch, lambda: DataLoader(Stream(38), 4), {**SIX, "limit_train_batches": 16},
    ),

    "a stream that says too much": (by_epoch, lambda: DataLoader(Claims(40, 48), 4), SIX),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")
@pytest.mark.parametrize("name", RUNS_THAT_CHANGE)
def test_a_run_whose_epochs_change_is_the_plain_run_step_for_step(name: str) -> None:
    make, data, options = RUNS_THAT_CHANGE[name]
    limits = dict(options)
    more = limits.pop("callbacks", [])

    def run(*callbacks: Any) -> tuple[Any, Net]:
        return fit([*callbacks, *more], make(), train=data(), **limits)

    plain, plain_net = run()
    if name == "a batch sampler":  # without predicted steps every batch is used
        corrected = HybridPredict(speedup=1)
        trainer, net = run(corrected)
        assert net.rates == plain_net.rates and net.batches == plain_net.batches
        assert corrected.ledger.full_steps == corrected.ledger.steps == trainer.global_step

    hybrid = Ungated(warmup_steps=4, cooldown_steps=2)
    trainer, net = run(hybrid)
    assert trainer.global_step == hybrid.ledger.steps == plain.global_step > 20
    assert hybrid.ledger.full_steps == len(net.rates) < 0.85 * plain.global_step
    assert net.rates.items() <= plain_net.rates.items()


def test_a_run_whose_length_changes_says_so_once_and_its_log_follows() -> None:
    callback = Ungated()
    fit([callback], Epochs([4, 8, 12, 20]), max_epochs=4, **RELOADED)
    assert [e["count"] for e in callback.ledger.events if "counted anew" in e["reason"]] == [3]
    assert callback.history.steps == callback.ledger.steps == 44


def test_epochs_may_lose_their_length() -> None:
    class Loses(Net):
        def train_dataloader(self) -> Any:
            return loader(8) if self.trainer.current_epoch < 2 else DataLoader(Stream(32), 4)

    plain, _ = fit([], Loses("none"), max_epochs=4, **RELOADED)
    for speedup in (1, 1.5):
        trainer, _ = fit([Ungated(speedup=speedup)], Loses("none"), max_epochs=4, **RELOADED)
        assert (trainer.current_epoch, trainer.global_step) == (4, plain.global_step) == (4, 32)
