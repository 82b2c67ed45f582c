"""What two ranks do when one fails; by ``launcher.launch``, for ``test_rank_failures``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import same_bits
from torch import Tensor

from distributed_loops import Loop, batch, ddp, make_config, sharded
from faulty import Failing, FailingUpdate
from hybrid_predict import HybridTrainer, OptimizerWrapper, TorchModel
from hybrid_predict.ranks import processes


@dataclass(frozen=True, kw_only=True)
class FailingThere(Failing):
    """Fails on one rank only."""

    rank: int = 1

    def _fail(self, method: str, state: Any) -> None:
        if processes.rank() == self.rank:
            super()._fail(method, state)


@dataclass(frozen=True, kw_only=True)
class FailingUpdateThere(FailingUpdate):
    """Fails on the last rank only, in a method in which the ranks of a sharded model meet."""

    def _fail(self) -> None:
        if processes.rank() == 1:
            super()._fail()


def failure(act: Callable[[], object], whole: Callable[[], bool]) -> dict[str, Any]:
    """What a rank ended with, and whether it was left as it was before its last full step."""
    with pytest.raises(Exception) as caught:
        act()
    return {"type": caught.typename, "text": str(caught.value), "whole": whole()}


def in_a_loop(wrap: Callable[[Any], Any], **changes: Any) -> Callable[[Path], dict[str, Any]]:
    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap, make_config(**changes))
        kept: Any = None

        def act() -> None:
            nonlocal kept
            with loop.engine:
                while not loop.engine.done:
                    kept = loop.state()
                    loop.step()

        found = failure(act, lambda: same_bits(loop.state(), kept))
        return {**found, "steps": loop.taken}

    return check


def loader(folder: Path) -> dict[str, Any]:
    """A data loader that raises on one rank, in a loop of ours."""
    loop = Loop(ddp())
    loop.engine.detach()
    kept: Any = None
    model = TorchModel(loop.model, lambda net, x: net(x).square().mean())
    trainer = HybridTrainer(model, OptimizerWrapper(loop.optimizer), make_config())

    def batches() -> Iterator[Tensor]:
        nonlocal kept
        for k in range(100):
            kept = loop.state()
            if k == 8 and processes.rank() == 1:
                raise OSError("the share is gone")
            yield batch(k)

    found = failure(lambda: trainer.fit(batches()), lambda: same_bits(loop.state(), kept))
    return {**found, "steps": 8}


def in_a_trainer(folder: Path) -> dict[str, Any]:
    """A data loader that raises on one rank, in a Trainer."""
    from lightning.pytorch.strategies import DDPStrategy
    from lightning_models import Net, SeededLoader, Ungated, fit

    class Torn(SeededLoader):
        def __iter__(self) -> Iterator[list[Tensor]]:
            for k, x in enumerate(super().__iter__()):
                if k == 8 and processes.rank() == 1:
                    raise OSError("the share is gone")
                yield x

    callback, options = Ungated(), {"max_steps": 30, "devices": 2, "strategy": DDPStrategy()}
    return failure(
        lambda: fit([callback], Net(), train=Torn(20), **options),
        lambda: not callback.engine.in_step,
    )


CHECKS: dict[str, Callable[[Path], Any]] = {
    "predictor": in_a_loop(ddp(), predictors={"hidden": FailingThere(gated=False)}),
    "memory": in_a_loop(
        ddp(),
        predictors={"hidden": FailingThere(error=torch.OutOfMemoryError, rank=0, gated=False)},
    ),
    "sharded": in_a_loop(sharded, updates={"hidden": FailingUpdateThere(after=8)}),
    "loader": loader,
    "trainer": in_a_trainer,
}
