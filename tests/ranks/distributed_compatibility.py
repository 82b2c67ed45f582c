"""The rows of docs/compatibility.md on two ranks; judged in ``test_compatibility_on_ranks``."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning_models import EVERYWHERE, Net
from torch.distributed.fsdp import FSDPModule, fully_shard

from compatibility import test_compatibility as single

STRATEGIES = ("ddp", "fsdp2")

PARTLY = {
    "parameters without gradient",
    "layers skipped at random",
    "several optimizers, manual optimization, `max_steps`",
    "several optimizers, manual optimization, `max_epochs`",
    "schedulers stepped once per epoch, manual optimization",
    "several updates of one optimizer per step, manual optimization",
    "several updates of one optimizer per step, `max_steps`",
    "schedulers stepped every few steps, manual optimization",
    "optimizers stepped in turn, manual optimization",
    "optimizers stepped in turn, `max_steps`",
}
"""Rows in which a backward pass leaves parameters out. DDP and FSDP2 have to be told."""


def _fsdp2() -> ModelParallelStrategy:
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1}
    return ModelParallelStrategy(**sizes, save_distributed_checkpoint=False)


@contextmanager
def _trained_by(strategy: str, partly: bool) -> Iterator[None]:
    """Every Trainer has this strategy in the block."""

    def shard(model: Net) -> None:
        options = {"reshard_after_forward": True} if partly else {}
        for part in model.children():
            if not isinstance(part, FSDPModule) and any(True for _ in part.parameters()):
                fully_shard(part, mesh=model.device_mesh["data_parallel"], **options)

    ddp = partial(DDPStrategy, find_unused_parameters=partly)
    made: dict[str, Callable[[], Any]] = {
        "strategy": ddp if strategy == "ddp" else _fsdp2,
        "devices": lambda: 2,
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(EVERYWHERE, made))
        if strategy == "fsdp2":
            stack.enter_context(mock.patch.object(Net, "configure_model", shard))
        yield


def _row(strategy: str, name: str, folder: Path) -> str:
    """The outcome of a row; what was raised if it fails."""
    place = folder / f"{strategy} {list(single.CHECKS).index(name)}"
    place.mkdir(exist_ok=True)
    with _trained_by(strategy, name in PARTLY):
        try:
            outcome = single.CHECKS[name](place)
        except BaseException:  # as pytest's own failures are
            return traceback.format_exc()
    return outcome if isinstance(outcome, str) else "works"


CHECKS: dict[str, Callable[[Path], Any]] = {
    **{f"{s}: {name}": partial(_row, s, name) for s in STRATEGIES for name in single.CHECKS}
}
