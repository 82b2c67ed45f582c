"""Which rank corrects which matrix, and what it is sent; judged in ``test_owners``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from loops import same_bits
from torch import Tensor
from torch.utils._pytree import tree_leaves

from distributed_fsdp1 import fsdp1
from distributed_loops import (
    FEW,
    OWN,
    SPOILED,
    Loop,
    Net,
    ddp,
    make_config,
    outcome,
    sharded,
    wide,
)
from hybrid_predict import SpectralUpdate
from hybrid_predict.groups import group
from hybrid_predict.model.cost import Watching
from hybrid_predict.ranks import owners, processes, shards
from hybrid_predict.ranks.owners import MOST_TOGETHER
from hybrid_predict.updates import UpdateState
from hybrid_predict.updates.correct import correction

COLLECTIVES = ("all_to_all_single", "all_gather_single", "all_gather_into_tensor", "all_reduce")


@dataclass(frozen=True, kw_only=True)
class Seen(SpectralUpdate):
    """Remembers the shapes of the matrices that it was given."""

    decay: float = 0.8
    shapes: list[tuple[int, ...]] = field(default_factory=list, compare=False, repr=False)

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        matrices: list[Tensor],
    ) -> list[Tensor]:
        self.shapes.extend(tuple(x.shape) for x in matrices)
        return super().direction(state, members, matrices)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Numbers that this rank receives from other ranks, by collective."""
    received = Counter[str]()

    def watch(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(out: Tensor, *args: Any, **options: Any) -> Any:
            if name == "all_to_all_single":
                own = args[1][dist.get_rank()]
            else:
                own = out.numel() // dist.get_world_size() if "gather" in name else 0
            received[name] += out.numel() - own
            return real(out, *args, **options)

        return call

    names = [name for name in COLLECTIVES if hasattr(dist, name)]
    with mock.patch.multiple(dist, **{name: watch(name) for name in names}):
        yield received


def corrected(
    wrap: Callable[[Net], Any], update: Any, together: int = MOST_TOGETHER
) -> Callable[[Path], dict[str, Any]]:
    """Matrices that this rank corrects in a full step, and what it receives and holds for that."""

    def check(folder: Path) -> dict[str, Any]:
        seen = update() if update is Seen else None
        config = make_config(updates={"hidden": seen or update}, predictors={})
        loop = Loop(wrap, config)
        loop.train(3)
        (kept,) = loop.engine._state.groups
        held, received = set[tuple[int, ...]](), Counter[str]()

        def correct(*args: Any) -> Any:
            with counted() as count, Watching(lambda f, a, k, out: hold(out)):
                found = correction(*args)
            received.update(count)
            return found

        def hold(out: Any) -> None:
            tensors = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
            held.update(tuple(x.shape[-2:]) for x in tensors)

        if seen is not None:
            seen.shapes.clear()
        few = mock.patch.object(owners, "MOST_TOGETHER", together)
        with few, mock.patch.object(group, "correction", correct):
            loop.step()
        owned = kept.memory.owned()
        return {
            "seen": seen and seen.shapes,
            "received": dict(received),
            "held": held,
            "owners": kept.memory.owners,
            "shapes": [tuple(shards.form(p).shape) for p in kept.parameters],
            "parts": [shards.local(p).numel() for p in kept.parameters],
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


def saved_alone(folder: Path) -> dict[str, Any]:
    """DDP: the state that rank 0 saves while the others wait, and those of all ranks.

    Without roots, which only owners keep.
    """
    loop = Loop(ddp(), make_config(updates={"hidden": SpectralUpdate(longest=0)}))
    loop.train(SPOILED)
    alone = loop.engine.state_dict() if processes.rank() == 0 else None
    dist.barrier()
    groups = loop.engine.state_dict()["tensors"]["groups"]
    alike = alone is not None and same_bits(alone["tensors"]["groups"], groups)
    return {"alike": alike, "groups": groups}


def unequal(folder: Path) -> str:
    """What is said about matrices that are not the same on all ranks."""
    loop = Loop()
    with torch.no_grad():
        loop.model.middle.weight += processes.rank()
    with pytest.raises(RuntimeError) as caught:
        loop.step()
    return str(caught.value)


def in_turns(wrap: Callable[[Net], Any]) -> Callable[[Path], dict[str, Any]]:
    """When matrices are corrected where the budget does not allow it in every full step."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap, make_config(max_overhead=FEW))
        found = outcome(loop, loop.train(SPOILED))
        (kept,) = (group for group in loop.engine._state.groups if group.treatment.update)
        period, turns = loop.engine._state.groups.period, list(kept._turns)
        return {"period": period, "turns": turns, "owners": kept.memory.owners, **found}

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "owners, ddp": corrected(ddp(), Seen),
    "owners, fsdp2": corrected(sharded, Seen),
    "owners, fsdp2, columns, rounds": corrected(wide, Seen, together=1),
    "owners, fsdp2, own": corrected(sharded, OWN["hidden"]),
    "owners, fsdp1, rounds": corrected(fsdp1(), Seen, together=1),
    "turns, ddp": in_turns(ddp()),
    "turns, fsdp2": in_turns(sharded),
    "ddp, resumed from any rank": resumed,
    "ddp, saved alone": saved_alone,
    "unequal": unequal,
}
