"""Two ranks in a Lightning Trainer: alike, and resumed bit for bit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, fsdp
from lightning_models import Net, SeededLoader, Ungated, fit
from torch import Tensor
from torch import distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.shards import named_parameters
from launcher import launch, same

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]

PREDICTING = HybridConfig(
    full_steps=1,
    predict_steps=1,
    max_overhead=100.0,
    predictors=dict.fromkeys(("hidden", "vector"), MomentumPredictor(gated=False)),
)


class ShardedNet(Net):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        fully_shard(self.net[0], mesh=mesh)
        fully_shard(self.net, mesh=mesh)


class FirstLogs(Net):
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), rank_zero_only=True)


class HostFSDP(FSDPStrategy):
    """On the CPU, for which Lightning refuses its own class."""

    def _setup_model(self, model: Any) -> Any:
        device = torch.device("cpu")
        model.net[0] = FullyShardedDataParallel(model.net[0], device_id=device, **self.kwargs)
        return FullyShardedDataParallel(model, device_id=device, **self.kwargs)


def left_there(module: Any, world_size: int, rank0_only: bool = True) -> Any:
    """Lightning's context of full states, which moves to the host what is gathered.

    Torch frees, or uses again, what is there already.
    """
    configs = FullStateDictConfig, FullOptimStateDictConfig
    options = [config(offload_to_cpu=False, rank0_only=rank0_only) for config in configs]
    return FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT, *options)


class RankLoader(SeededLoader):
    """Other batches on every rank."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        for (x,) in super().__iter__():
            yield [x.roll(processes.rank(), 1)]


class Spy(DummyLogger):
    """Counts what it is told about the plug-in."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.summaries = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows += any(name.startswith("hybrid_predict/") for name in metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        self.summaries += 1


def run(make: Callable[[], Any], model: Callable[..., Net] = Net, **kwargs: Any) -> dict[str, Any]:
    """A fit with a random state of each rank's own, and what came of it on this rank."""
    callback = Ungated(config=PREDICTING)
    spy = Spy()
    callbacks = [callback, *kwargs.pop("callbacks", [])]
    trainer, _ = fit(
        callbacks, model(), train=RankLoader(10), seed=kwargs.pop("seed", 0) + processes.rank(),
        max_steps=36, devices=2, strategy=make(), logger=spy, **kwargs
    )  # fmt: skip
    # Batch norm's statistics are each rank's own, and a sharded checkpoint has those of one rank:
    # after it, validations, and so the best one, differ.
    own = ("seconds", "overhead", "best")
    ledger = callback.ledger.summary()
    return {
        "weights": {
            n: shards.full_tensor(shards.local(p), p).clone()
            for n, p in named_parameters(trainer.model)
        },
        "ledger": {k: v for k, v in ledger.items() if not any(word in k for word in own)},
        "best": ledger["best"],
        "step": trainer.global_step,
        "rows": spy.rows,
        "summaries": spy.summaries,
        "random": torch.get_rng_state(),
    }


def fsdp2(**options: Any) -> ModelParallelStrategy:
    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, **options)


def resumed(name: str, *args: Any, **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A run, and the same from one of its checkpoints on."""

    def check(folder: Path) -> dict[str, Any]:
        def save(place: str) -> ModelCheckpoint:
            return ModelCheckpoint(
                folder / f"{name}-{place}", "{step}", every_n_train_steps=6, save_top_k=-1,
                save_on_train_epoch_end=False,
            )  # fmt: skip

        path = folder / f"{name}-left" / "step=18.ckpt"
        with mock.patch.object(fsdp, "_get_full_state_dict_context", left_there):
            left = run(*args, callbacks=[save("left")], **options)
            right = run(*args, callbacks=[save("right")], ckpt_path=str(path), seed=50, **options)
        return {"left": left, "right": right, "folder": path.is_dir()}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "ddp, resumed": resumed("ddp", DDPStrategy),
    "ddp, logged by one": lambda folder: run(DDPStrategy, FirstLogs),
    "fsdp2, sharded, resumed": resumed("sharded", fsdp2, ShardedNet),
    "fsdp1, full, resumed": resumed("fsdp1-full", HostFSDP),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return launch(["test_trainers"], folder)


@pytest.mark.parametrize("name", ["ddp", "fsdp2, sharded", "fsdp1, full"])
def test_a_resumed_run_is_the_uninterrupted_one_on_every_rank(results: Results, name: str) -> None:
    ends = [found["left"] for found in results[f"{name}, resumed"]]
    assert same(*ends, "weights", "ledger", "step")
    for found in results[f"{name}, resumed"]:
        assert same(found["left"], found["right"], "weights", "ledger", "step", "random")
        assert found["left"]["step"] == 36
        assert found["left"]["ledger"]["predicted_steps"] > 10
        assert found["folder"] is name.endswith("sharded")


def test_a_validation_that_one_rank_logs_counts_on_all(results: Results) -> None:
    first, second = (found["best"] for found in results["ddp, logged by one"])
    assert first is not None and first == second


def test_only_the_first_rank_logs(results: Results) -> None:
    first, second = (found["left"] for found in results["ddp, resumed"])
    assert (first["rows"], first["summaries"]) == (first["ledger"]["full_steps"], 1)
    assert (second["rows"], second["summaries"]) == (0, 0)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("name", ["ddp", "fsdp1-full"])
def test_a_single_process_continues_a_checkpoint_of_two_ranks(
    results: Results, folder: Path, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = Ungated(config=PREDICTING)
    path = folder / f"{name}-left" / "step=18.ckpt"
    save = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=6, save_top_k=-1)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        trainer, _ = fit([callback, save], train=RankLoader(10), max_steps=36, ckpt_path=str(path))
    assert trainer.global_step == 36
    assert [e["reason"] for e in callback.ledger.events] == [
        "the number of ranks changed from 2 to 1"
    ]
    assert len(caplog.messages) == 1
