"""What two ranks do in a Trainer; run by ``launcher.launch``, judged in ``test_trainers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning_models import Net, Recorded, SeededLoader, fit
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.torch import ranks, shards

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


class RankLoader(SeededLoader):
    """Other batches on every rank."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        for (x,) in super().__iter__():
            yield [x.roll(ranks.rank(), 1)]


class Spy(Logger):
    """Notes what it is told about the plug-in."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []
        self.parameters: list[Any] = []

    @property
    def name(self) -> str:
        return "spy"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith("hybrid_predict/") for name in metrics):
            self.rows.append(metrics)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.parameters.append(params)


def run(
    make: Callable[[], Any],
    model: Callable[..., Net] = Net,
    nan_at: tuple[int, ...] = (),
    **kwargs: Any,
) -> dict[str, Any]:
    """A fit with a random state of each rank's own, and what came of it on this rank."""
    callback, spy = Recorded(config=PREDICTING), Spy()
    callbacks: list[Callback] = [callback, *kwargs.pop("callbacks", [])]
    net = model(nan_at=nan_at if ranks.rank() else ())
    trainer, _ = fit(
        callbacks, net, train=RankLoader(10), seed=kwargs.pop("seed", 0) + ranks.rank(),
        max_steps=36, devices=2, strategy=make(), logger=spy, **kwargs
    )  # fmt: skip
    own = ("seconds", "overhead")
    ledger = callback.ledger.summary()
    return {
        "weights": {
            n: shards.full_tensor(shards.local(p), p).clone() for n, p in net.named_parameters()
        },
        "ledger": {k: v for k, v in ledger.items() if not any(word in k for word in own)},
        "records": callback.records,
        "step": trainer.global_step,
        "rows": len(spy.rows),
        "summaries": len(spy.parameters),
        "random": torch.get_rng_state(),
    }


def fsdp2(**options: Any) -> ModelParallelStrategy:
    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, **options)


def trained(*args: Any, **options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: run(*args, **options)


def resumed(name: str, *args: Any, **options: Any) -> Callable[[Path], dict[str, Any]]:
    """A run, and the same from one of its checkpoints on."""

    def check(folder: Path) -> dict[str, Any]:
        def save(place: str) -> ModelCheckpoint:
            return ModelCheckpoint(
                folder / f"{name}-{place}", "{step}", every_n_train_steps=6, save_top_k=-1,
                save_on_train_epoch_end=False,
            )  # fmt: skip

        left = run(*args, callbacks=[save("left")], **options)
        path = folder / f"{name}-left" / "step=18.ckpt"
        right = run(*args, callbacks=[save("right")], ckpt_path=str(path), seed=50, **options)
        return {"left": left, "right": right, "folder": path.is_dir()}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "ddp": trained(DDPStrategy, accumulate_grad_batches=2),
    "ddp, static graph": trained(lambda: DDPStrategy(static_graph=True)),
    "ddp, unused parameters": trained(lambda: DDPStrategy(find_unused_parameters=True)),
    "ddp, spoiled": trained(DDPStrategy, nan_at=(3,)),
    "fsdp2, spoiled": trained(fsdp2, ShardedNet, nan_at=(3,)),
    "ddp, resumed": resumed("ddp", DDPStrategy),
    "fsdp2, sharded, resumed": resumed("sharded", fsdp2, ShardedNet),
    "fsdp2, full, resumed": resumed(
        "full", lambda: fsdp2(save_distributed_checkpoint=False), ShardedNet
    ),
}
