"""Which rank corrects which matrix, and what it is sent; judged in ``test_owners``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from loops import same_bits
from torch import Tensor

from distributed_fsdp1 import fsdp1
from distributed_loops import SPOILED, Loop, Net, ddp, make_config, outcome, sharded, wide
from hybrid_predict import SpectralUpdate
from hybrid_predict.ranks import owners, processes, shards
from hybrid_predict.ranks.owners import MOST_TOGETHER
from hybrid_predict.updates import UpdateState


@dataclass(frozen=True, kw_only=True)
class Seen(SpectralUpdate):
    """Remembers the shapes of the matrices that it was given."""

    decay: float = 0.8
    shapes: list[tuple[int, ...]] = field(default_factory=list, compare=False, repr=False)

    def direction(
        self, state: UpdateState, members: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        self.shapes.extend(tuple(x.shape) for x in matrices)
        return super().direction(state, members, matrices)


def corrected(
    wrap: Callable[[Net], Any], together: int = MOST_TOGETHER
) -> Callable[[Path], dict[str, Any]]:
    """Matrices that this rank corrects in a full step, and what it keeps about them."""

    def check(folder: Path) -> dict[str, Any]:
        seen = Seen()
        loop = Loop(wrap, make_config(updates={"hidden": seen}, predictors={}))
        loop.train(3)
        (kept,) = loop.engine._state.groups
        seen.shapes.clear()
        with mock.patch.object(owners, "MOST_TOGETHER", together):
            loop.step()
        owned = kept.owned()
        return {
            "seen": seen.shapes,
            "owners": kept.owners.ranks,
            "shapes": [tuple(shards.form(p).shape) for p in kept.parameters],
            "arrays": {name: [not x.is_meta for x in each] for name, each in owned.items()},
        }

    return check


def resumed(folder: Path) -> dict[str, Any]:
    """DDP: what any rank has saved continues on every rank."""
    loop = Loop(ddp())
    loop.train(SPOILED)
    saved = {"engine": loop.engine.state_dict(), "parts": loop.state()}
    torch.save(saved, folder / f"ddp-{processes.rank()}.pt")
    dist.barrier()
    again = Loop(ddp())
    states = [torch.load(folder / f"ddp-{k}.pt") for k in range(processes.size())]
    again.load(states[0]["parts"])
    again.engine.load_state_dict(states[1]["engine"])
    again.taken = loop.taken
    left, right = outcome(loop, loop.train(8)), outcome(again, again.train(8))
    groups = [state["engine"]["tensors"]["groups"] for state in states]
    return {"left": left, "right": right, "alike": same_bits(*groups)}


CHECKS: dict[str, Callable[[Path], Any]] = {
    "owners, ddp": corrected(ddp()),
    "owners, fsdp2": corrected(sharded),
    "owners, fsdp2, columns, rounds": corrected(wide, together=1),
    "owners, fsdp1, rounds": corrected(fsdp1(), together=1),
    "ddp, resumed from any rank": resumed,
}
