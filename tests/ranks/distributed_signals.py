"""What two ranks do when a cluster sends signals; by ``launcher.launch``, for ``test_signals``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from slurm import job

from distributed_loops import Loop, ddp, make_config, sharded
from faulty import Log
from hybrid_predict.ranks import processes
from test_trainers import PREDICTING, ShardedNet, fsdp2, run


class Sent(Callback):
    """A signal that reaches one rank in one of its batches, in a hook."""

    def __init__(self, number: int, rank: int, batch: int, hook: str) -> None:
        self.number, self.rank, self.batch = number, rank, batch
        setattr(self, hook, self.send)

    def send(self, trainer: Any, *args: Any) -> None:
        if (self.rank, self.batch) == (processes.rank(), trainer.fit_loop.total_batch_idx):
            self.batch = -1
            os.kill(os.getpid(), self.number)


def requeued(name: str, *args: Any) -> Callable[[Path], dict[str, Any]]:
    """Both ranks get SLURM's signal, in different full steps; then the job runs again."""

    def check(folder: Path) -> dict[str, Any]:
        own = folder / f"requeued-{name}-{processes.rank()}" if processes.rank() else folder / name
        own.mkdir()
        sent = [
            Sent(signal.SIGUSR1, 0, 9, "on_after_backward"),
            Sent(signal.SIGUSR1, 1, 11, "on_before_zero_grad"),
        ]
        with mock.patch.dict(os.environ, job(own, processes.rank(), tasks=2)):
            options = {"default_root_dir": folder / name, "config": PREDICTING}
            left = run(*args, callbacks=sent, plugins=[SLURMEnvironment()], **options)
            right = run(*args, plugins=[SLURMEnvironment()], seed=50, **options)
        told = own / "told"
        return {"left": left, "right": right, "told": told.read_text() if told.exists() else ""}

    return check


def ended(name: str, *args: Any) -> Callable[[Path], dict[str, Any]]:
    """One rank gets SIGTERM in a forward pass, and both go on from what they save then."""

    def check(folder: Path) -> dict[str, Any]:
        def save(place: str) -> ModelCheckpoint:
            return ModelCheckpoint(
                folder / f"{name}-{place}", "end", save_on_exception=True, every_n_train_steps=1000
            )

        left = run(*args, config=PREDICTING)
        sent = Sent(signal.SIGTERM, 1, 9, "on_before_backward")
        torch.manual_seed(0)  # the same weights at the start
        with Log() as log, pytest.raises(SystemExit):
            run(*args, config=PREDICTING, callbacks=[sent, save("ended")])
        path = str(folder / f"{name}-ended" / "end.ckpt")
        right = run(*args, config=PREDICTING, callbacks=[save("again")], ckpt_path=path, seed=50)
        return {"left": left, "right": right, "heard": log.lines}

    return check


def asked(wrap: Callable[[Any], Any], *, late: bool = False) -> Callable[[Path], dict[str, Any]]:
    """One rank asks a loop of one's own to stop; which full steps tell that it was asked.

    If ``late``, measurements are read as late as those on a device.
    """

    def check(folder: Path) -> dict[str, Any]:
        with mock.patch("hybrid_predict.state.on_host", lambda _: not late):
            return stops()

    def stops() -> dict[str, Any]:
        loop = Loop(wrap, make_config())
        for _ in range(10):
            loop.step(stop=False)
        records = [loop.step(stop=k == 0 and processes.rank() == 1) for k in range(2)]
        state, again = [loop.engine.state_dict()], Loop(wrap, make_config())
        dist.broadcast_object_list(state)
        again.engine.load_state_dict(state[0])
        records += [loop.step(stop=False) for _ in range(3)]
        resumed = [again.step(stop=False).stop for _ in range(4)]
        loop.engine._fall_back("told so")
        after = [loop.step(stop=bool(k and processes.rank())).stop for k in range(2)]
        return {"stops": [r.stop for r in records], "resumed": resumed, "plain": after}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "ddp, requeued": requeued("ddp", DDPStrategy),
    "fsdp2, ended": ended("fsdp2", fsdp2, ShardedNet),
    "ddp, asked": asked(ddp()),
    "fsdp2, late, asked": asked(sharded, late=True),
}
