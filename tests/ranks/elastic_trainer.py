"""A Lightning Trainer that torchrun restarts; it fails where it is told.

The processes run: torchrun tests/ranks/elastic_trainer.py FOLDER SETUP [PLANNED]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning_models import Net, SeededLoader, Ungated, fit
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from hybrid_predict.ranks import processes, shards
from launcher import ADVICE

STEPS, EVERY = 40, 4


class ShardedNet(Net):
    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        fully_shard(self.net[0], mesh=mesh)
        fully_shard(self.net, mesh=mesh)


class RankLoader(SeededLoader):
    """A batch of 16 samples, of which every rank has its part."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        for (x,) in super().__iter__():
            yield [x[processes.rank() :: processes.size()]]


def fsdp2(**options: Any) -> Any:
    world = int(os.environ["WORLD_SIZE"])
    return ModelParallelStrategy(world, 1, process_group_backend="gloo", **options)


SETUPS: dict[str, tuple[Callable[[], Any], type[Net]]] = {
    "ddp": (lambda: DDPStrategy(process_group_backend="gloo"), Net),
    "fsdp2": (lambda: fsdp2(save_distributed_checkpoint=False), ShardedNet),
    "fsdp2, sharded": (fsdp2, ShardedNet),
}


class Fault(Callback):
    """Does one thing on a rank: in one of its full steps, in a hook, in one way."""

    def __init__(
        self, folder: Path, plugin: Ungated, rank: int, number: int, hook: str, how: str
    ) -> None:
        self.folder, self.plugin, self.rank, self.number = folder, plugin, rank, number
        self.how = how
        setattr(self, hook, self.strike)

    def strike(self, trainer: Any, *args: Any) -> None:
        if trainer.sanity_checking:
            return
        engine = self.plugin.engine
        if engine is None or self.rank != processes.rank():
            return
        step = engine._step
        if self.number != engine.ledger.full_steps + (step is not None):
            return
        self.number = -1
        told = {} if step is None else {"phase": step.phase.value, "predicted": step.predicted}
        with (self.folder / "faults.jsonl").open("a") as file:
            print(json.dumps({"rank": processes.rank(), **told}), file=file)
        if self.how == "exit":
            os._exit(3)
        elif self.how == "raise":
            raise OSError("the share is gone")
        os.kill(os.getpid(), getattr(signal, self.how))


def run(folder: Path, setup: str, planned: list[list[list[Any]]]) -> None:
    strategy, model = SETUPS[setup]
    plugin = Ungated(full_steps=2, predict_steps=1, warmup_steps=5, cooldown_steps=5,
                     max_overhead=100.0)  # fmt: skip
    save = ModelCheckpoint(
        folder, "{step}", every_n_train_steps=EVERY, save_top_k=-1, save_on_train_epoch_end=False,
        save_last="sharded" not in setup, enable_version_counter=False,
    )  # fmt: skip
    world = int(os.environ.get("WORLD_SIZE", "1"))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    faults = [
        Fault(folder, plugin, *each) for now in planned[attempt : attempt + 1] for each in now
    ]
    path: str | None = "last"
    if "sharded" in setup:  # the folder of the last save may be incomplete
        whole = [x.parent for x in folder.glob("step=*.ckpt/meta.pt")]
        path = str(max(whole, key=lambda x: x.stat().st_mtime)) if whole else None
    torch.manual_seed(0)  # the same weights on all ranks; then each draws its own numbers
    rank = int(os.environ.get("RANK", "0"))
    trainer, net = fit(
        [plugin, *faults, save], model(), train=RankLoader(50), seed=rank, max_steps=STEPS,
        devices=world, strategy=strategy(), logger=CSVLogger(folder), ckpt_path=path,
        val_check_interval=10,
    )  # fmt: skip
    named = {n: shards.full_tensor(shards.local(p), p).clone() for n, p in net.named_parameters()}
    (optimizer,) = trainer.optimizers
    moments = {
        f"{n}.{k}": shards.full_tensor(shards.local(v), v).clone() if k != "step" else v.clone()
        for n, p in net.named_parameters() for k, v in optimizer.state[p].items()
    }  # fmt: skip
    ledger = plugin.ledger.summary()
    kept = {k: v for k, v in ledger.items() if not any(w in k for w in ("seconds", "overhead"))}
    if processes.rank() == 0:
        torch.save({"weights": named, "optimizer": moments, "ledger": kept,
                    "step": trainer.global_step}, folder / "end.pt")  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in (*ADVICE, '.*ckpt_path="last"', ".*Checkpoint directory", "Detected an"):
        warnings.filterwarnings("ignore", message)
    run(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3] if sys.argv[3:] else "[]"))
