"""The rows of docs/compatibility.md on two ranks; judged in ``test_compatibility_on_ranks``."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lightning_models
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard

from compatibility import test_compatibility as single

def _shard(model: lightning_models.Net) -> None:
    """Shard every part, once, as ``configure_model`` of a user does."""
    for part in model.children():
        if not isinstance(part, FSDPModule) and any(True for _ in part.parameters()):
            fully_shard(part, mesh=model.device_mesh["data_parallel"])


def _fsdp2() -> ModelParallelStrategy:
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1}
    return ModelParallelStrategy(**sizes, save_distributed_checkpoint=False)


STRATEGIES: dict[str, Callable[[], Any]] = {"ddp": DDPStrategy, "fsdp2": _fsdp2}

@contextmanager
def trained_by(name: str) -> Iterator[None]:
    """Every Trainer has this strategy in the block."""
    arguments: dict[str, Any] = {"strategy": STRATEGIES[name], "devices": lambda: 2}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(lightning_models.EVERYWHERE, arguments))
        if name == "fsdp2":
            stack.enter_context(mock.patch.object(lightning_models.Net, "configure_model", _shard))
        yield


def _row(strategy: str, name: str, folder: Path) -> str:
    place = folder / f"{strategy} {list(single.CHECKS).index(name)}"
    with trained_by(strategy):
        try:
            outcome = single.CHECKS[name](place)
        except BaseException:  # as pytest's own failures are
            return traceback.format_exc()
    return outcome if isinstance(outcome, str) else "works"


CHECKS: dict[str, Callable[[Path], str]] = {
    f"{strategy}: {name}": partial(_row, strategy, name)
    for strategy in STRATEGIES
    for name in single.CHECKS
}
