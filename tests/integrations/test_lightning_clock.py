"""The Trainer's counters tell steps, predicted ones included, and schedules keep their shape."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning_models import Net, Ungated, fit, loader
from torch.utils.data import DataLoader

from hybrid_predict.integrations.lightning_clock import TrainerClock

RUNS: dict[str, dict[str, Any]] = {
    "max_steps": {"max_steps": 120},
    "max_epochs": {"max_epochs": 6},
    "accumulation": {"max_epochs": 6, "accumulate_grad_batches": 3},
}


@pytest.mark.parametrize("frequency", [2, 3, 5])
@pytest.mark.parametrize("run", RUNS)
def test_scheduler_with_a_frequency_is_stepped_as_often_in_all(frequency: int, run: str) -> None:
    # A Trainer steps it by batch index; the clock catches up at the end of the full step.
    plain, _ = fit([], Net("step", frequency=frequency), **RUNS[run])
    hybrid, _ = fit([Ungated()], Net("step", frequency=frequency), **RUNS[run])
    ends = [t.lr_scheduler_configs[0].scheduler.last_epoch for t in (plain, hybrid)]
    assert 0 < ends[0] <= ends[1] <= ends[0] + 1


@pytest.mark.parametrize("schedule", ["step", "cosine"])
@pytest.mark.parametrize("run", ["max_steps", "max_epochs"])
def test_epoch_schedulers_step_once_per_epoch_of_the_clock(schedule: str, run: str) -> None:
    plain, _ = fit([], Net(schedule, "epoch"), **RUNS[run])
    trainer, _ = fit([Ungated()], Net(schedule, "epoch"), **RUNS[run])
    schedulers = [t.lr_scheduler_configs[0].scheduler for t in (plain, trainer)]
    assert schedulers[0].last_epoch == schedulers[1].last_epoch > 0


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


@pytest.mark.parametrize("interval", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("window", [1, 2])
def test_every_validation_of_the_clock_runs(interval: float, window: int) -> None:
    def validations(callbacks: list[Callback]) -> int:
        counted: list[int] = []

        class Count(Callback):
            def on_validation_end(self, trainer: Any, module: Any) -> None:
                if not trainer.sanity_checking:
                    counted.append(trainer.global_step)

        fit([*callbacks, Count()], max_epochs=6, val_check_interval=interval,
            accumulate_grad_batches=window)  # fmt: skip
        return len(counted)

    assert validations([Ungated()]) == validations([]) == round(6 / interval)


@pytest.mark.parametrize("every", [1, 7, 10])
@pytest.mark.parametrize("speedup", [1.5, 3.0])
def test_checkpoints_come_at_the_first_step_that_reaches_each_multiple(
    tmp_path: Path, every: int, speedup: float
) -> None:
    checkpoint = ModelCheckpoint(
        tmp_path, "{step}", every_n_train_steps=every, save_top_k=-1, save_on_train_epoch_end=False
    )
    trainer, model = fit([Ungated(speedup=speedup), checkpoint], max_steps=120)
    saved = sorted(int(p.stem.split("=")[1]) for p in tmp_path.glob("*.ckpt"))
    steps = sorted({*model.rates, 120} - {0})
    reached = {next(s for s in steps if s >= m) // every * every for m in range(every, 121, every)}
    assert saved == sorted(reached)
    if every >= 7:
        assert saved == list(range(every, 121, every))
    bare, _ = fit([Ungated(speedup=speedup)], max_steps=120)
    left, right = trainer.lightning_module.state_dict(), bare.lightning_module.state_dict()
    assert all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.filterwarnings("ignore:.*fewer than max_epochs")
@pytest.mark.parametrize(
    ("batches", "window", "interval"),
    [(10, 4, 1.0), (7, 4, 1.0), (2, 1, 1.0), (20, 4, 0.25), (33, 2, 0.1), (50, 8, 0.25)],
)
def test_short_epochs_never_outrun_the_clock(batches: int, window: int, interval: float) -> None:
    callback, model = Ungated(speedup=1.5), Net("onecycle")
    trainer, _ = fit([callback], model, train=loader(batches), max_epochs=12,
                     accumulate_grad_batches=window, val_check_interval=interval)  # fmt: skip
    total = 12 * -(-batches // window)
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    assert trainer.global_step == callback.ledger.steps == total
    assert callback.ledger.full_steps == round(total / 1.5)
    assert scheduler.last_epoch == total


def test_missing_batches_are_passed_over() -> None:
    class Gaps(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return None if index % 5 == 3 else super().__getitem__(index)

    data = DataLoader(Gaps(torch.randn(40, 16, 8)), batch_size=None, collate_fn=gap)
    callback = Ungated(skip_data="none")
    with pytest.warns(UserWarning, match="yielded None"):
        trainer, _ = fit([callback], train=data, max_steps=30)
    assert trainer.global_step == 30


def gap(sample: Any) -> Any:
    return None if sample is None else [sample]


def test_without_a_counter_that_it_needs_nothing_is_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TrainerClock, "unavailable", "a counter is missing")
    callback = Ungated(speedup=2.0)
    with pytest.warns(UserWarning, match=r"no predicted steps: a counter is missing"):
        trainer, model = fit([callback], max_steps=30)
    assert trainer.global_step == model.batches == callback.ledger.full_steps == 30
    assert callback.ledger.corrected_steps > 0


def test_private_counters_are_looked_for() -> None:
    trainer, _ = fit([Ungated()], max_steps=3)
    clock = TrainerClock(trainer, "none", -1)
    trainer.fit_loop._data_fetcher = SimpleNamespace(fetched=0)
    assert clock.unavailable == ""
    trainer.fit_loop._data_fetcher = None
    assert "this version of Lightning has no fit_loop._data_fetcher" in clock.unavailable


def test_a_length_that_the_trainer_does_not_know_can_be_given() -> None:
    kwargs = {"max_steps": -1, "max_epochs": -1, "max_time": "00:00:10:00"}
    for skip_data in ("auto", "none"):
        callback = Ungated(total_steps=30, skip_data=skip_data)
        trainer, _ = fit([callback], Net("none"), **kwargs)
        assert (callback.ledger.full_steps, trainer.global_step) == (20, 30)


@pytest.mark.parametrize("batches", [1, 2, 6])
@pytest.mark.parametrize("frequency", [1, 3])
def test_schedulers_that_count_epochs_end_where_the_plain_run_does(
    batches: int, frequency: int
) -> None:
    def run(*callbacks: Any) -> tuple[Any, Any]:
        return fit(list(callbacks), Net("step", "epoch", frequency), train=loader(batches),
                   max_epochs=30)  # fmt: skip

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer, _ = run(Ungated())
    plain, _ = run()
    last = [t.lr_scheduler_configs[0].scheduler.last_epoch for t in (trainer, plain)]
    assert last[0] == last[1] == 30 // frequency
    assert trainer.global_step == plain.global_step
    told = [str(w.message) for w in caught if "fewer than max_epochs" in str(w.message)]
    assert bool(told) is (trainer.current_epoch < 30) is (batches < 6)


class Validations(Callback):
    """Notes at which global steps validations run."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.steps.append(trainer.global_step)


def validated(*callbacks: Any, schedule: str = "none", **limit: int) -> list[int]:
    seen = Validations()
    fit(
        [*callbacks, seen, EarlyStopping("val_loss", min_delta=1e9, patience=2)],
        Net(schedule),
        **limit,
    )
    return seen.steps


def test_patience_is_counted_in_the_validations_of_the_plain_run_where_epochs_bound_it() -> None:
    plain = validated(max_epochs=8)
    hybrid = validated(Ungated(speedup=1.5), max_epochs=8)
    assert len(hybrid) == len(plain) == 3
    assert all(abs(a - b) <= 1 for a, b in zip(plain, hybrid, strict=True))


@pytest.mark.parametrize(
    ("schedule", "named"), [("none", "EarlyStopping counts"), ("plateau", "and ReduceLROnPlateau")]
)
def test_a_run_bounded_by_steps_warns_of_patience(schedule: str, named: str) -> None:
    with pytest.warns(UserWarning, match=f"{named}.* Divide patience by 1.5, or bound") as found:
        steps = validated(Ungated(speedup=1.5), schedule=schedule, max_steps=128)
    assert sum("patience" in str(w.message) for w in found) == 1
    assert len(steps) == 3 and steps[-1] > 60  # 48 in the plain run
    assert validated(Ungated(speedup=1), schedule=schedule, max_steps=128)[-1] == 48
