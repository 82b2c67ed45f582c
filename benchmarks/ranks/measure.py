"""Measures on each rank what corrected updates send, compute, hold and take."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import middle, take_turns, without_advice
from benchmarks.memory import held
from benchmarks.ranks.loops import HSDP, SETUPS, WHOLE, RankLoop, Size, Wrap, alone
from benchmarks.step_cost import WAYS
from hybrid_predict.groups import group
from hybrid_predict.torch import owners, shards
from hybrid_predict.torch.cost import Watching
from hybrid_predict.updates.correct import correction

COLLECTIVES = ("all_to_all_single", "all_gather_single", "all_gather_into_tensor", "all_reduce")

TIMED = ("corrected", "both")
"""Of `WAYS`, besides plain training."""

UPDATES: dict[str, dict[str, Any]] = {
    "default": {},
}
"""Arguments of `HybridConfig` by the name of the update whose memory is measured."""


@dataclass(frozen=True)
class Plan:
    """What is measured: nets whose operations, and whose time, are measured."""

    counted: Size
    timed: Size
    blocks: int
    length: int


FULL = Plan(Size(48, 12, 16), Size(128, 4, 256), blocks=7, length=2)
GPUS = Plan(Size(48, 12, 16), Size(768, 12, 8192), blocks=12, length=16)
TOY = Plan(Size(16, 2, 8), Size(16, 2, 8), blocks=2, length=2)


@contextmanager
def _received(counts: Counter[str]) -> Iterator[None]:
    """Count bytes that this rank receives inside the block; those of a reduction are its size."""

    def watch(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(out: Tensor, *args: Any, **options: Any) -> Any:
            numbers = out.numel()
            if name == "all_to_all_single":
                numbers -= args[1][dist.get_rank()]
            elif "gather" in name:
                numbers -= args[0].numel()
            counts[name.replace("into_tensor", "single")] += numbers * out.element_size()
            return real(out, *args, **options)

        return call

    with ExitStack() as stack:
        for name in COLLECTIVES:
            if hasattr(dist, name):
                stack.enter_context(mock.patch.object(dist, name, watch(name)))
        yield


def traffic(wrap: Wrap, size: Size, device: torch.device) -> dict[str, Any]:
    """Return what this rank receives and computes for correcting in one full step."""
    loop, found = RankLoop(wrap, size, {"speedup": 1, **WHOLE}, device), Counter[str]()
    loop.run(3)
    operations = FlopCounterMode(display=False)

    @contextmanager
    def counting() -> Iterator[None]:
        with operations, _received(found):
            yield

    loop.around = counting
    loop.step()
    (kept,) = loop.engine._state.groups  # type: ignore[union-attr]
    owned_by = kept.memory.owners or [0] * len(kept.parameters)
    loop.close()
    return {
        "matrices": len(owned_by),
        "elements": kept.size,
        "owned": Counter(owned_by)[dist.get_rank() if dist.is_initialized() else 0],
        "operations": operations.get_total_flops(),
        "received_bytes": dict(found),
    }


def memory(wrap: Wrap, size: Size, device: torch.device) -> dict[str, Any]:
    """Return bytes that the engine says it holds between full steps, and bytes of its tensors."""
    found = {}
    for name, options in UPDATES.items():
        loop = RankLoop(wrap, size, {**WAYS["both"], **WHOLE, **options}, device)  # type: ignore[dict-item]
        loop.run(24)  # until a window of forecasts is open, which takes the most
        assert loop.engine is not None
        found[name] = {
            "told": sum(part.held_bytes for part in loop.engine._state.groups),
            "tensors": held(loop.engine, loop.model, loop.optimizer),
        }
        loop.close()
    return found


class _Peak:
    """The most bytes of tensors that are alive at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._sizes: dict[int, int] = {}
        self._views = Counter[int]()

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor, once, as long as a tensor on it is alive."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        self._sizes[place] = storage.nbytes()
        self._views[place] += 1
        weakref.finalize(tensor, self._leave, place)
        self.most = max(self.most, sum(self._sizes.values()))

    def see(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count what an operation has made, and views on it."""
        given = {x.untyped_storage().data_ptr() for x in _plain((args, kwargs))}
        for tensor in _plain(result):
            place = tensor.untyped_storage().data_ptr()
            if place in self._sizes or place not in given:
                self.add(tensor)

    def _leave(self, place: int) -> None:
        self._views[place] -= 1
        if not self._views[place]:
            self._sizes.pop(place, None)


def _plain(values: Any) -> list[Tensor]:
    tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
    return [x for x in tensors if not shards.is_sharded(x) and not x.is_meta and x.numel()]


def together(wrap: Wrap, size: Size, device: torch.device) -> dict[str, Any]:
    """Return the most bytes of whole matrices and of all that correcting makes, at one time.

    Few matrices come together at a time, so each rank needs several rounds. ``bound`` is the limit.
    """
    largest = 4 * size.width**2
    loop = RankLoop(wrap, size, {"speedup": 1, **WHOLE}, device)
    loop.run(3)
    wholes, everything = _Peak(), _Peak()
    bring, correct = owners.Exchange.whole, correction

    def watched(self: owners.Exchange, part: Callable[[int], Tensor]) -> list[Tensor]:
        found = bring(self, part)
        for tensor in found if self._sharded else ():
            wholes.add(tensor)
        return found

    def watched_correction(*args: Any) -> Any:
        with Watching(everything.see):
            return correct(*args)

    with (
        mock.patch.object(owners, "MOST_TOGETHER", 2 * largest),
        mock.patch.object(owners.Exchange, "whole", watched),
        mock.patch.object(group, "correction", watched_correction),
    ):
        loop.step()
    loop.close()
    return {"wholes": wholes.most, "all": everything.most, "bound": 4 * 2 * largest}


def seconds(wrap: Wrap, plan: Plan, device: torch.device) -> dict[str, Any]:
    """Return milliseconds of full steps. Loops take turns, and what is added is their difference.

    On a CPU it is processor time of this process, on a GPU wall time.
    """
    options = {"plain": None, **{way: {**(WAYS[way] or {}), **WHOLE} for way in TIMED}}
    loops = {way: RankLoop(wrap, plan.timed, given, device) for way, given in options.items()}
    rounds = take_turns(loops, plan.blocks, plan.length)
    for loop in loops.values():
        loop.close()
    scale = 1e3 / plan.length
    added = {
        way: middle([scale * (block[way] - block["plain"]) for block in rounds]) for way in TIMED
    }
    return {"plain_ms": scale * statistics.median(block["plain"] for block in rounds), **added}


def on_this_rank(wrap: Wrap, plan: Plan, device: torch.device) -> dict[str, Any]:
    """Return all that is measured on this rank."""
    with without_advice():
        return {
            **traffic(wrap, plan.counted, device),
            "memory": memory(wrap, plan.counted, device),
            "together": together(wrap, plan.counted, device),
            "ms": seconds(wrap, plan, device),
        }


def _work(rank: int, ranks: int, setup: str, folder: str, plan: Plan, kind: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
    )  # fmt: skip
    found = on_this_rank(SETUPS[setup], plan, device)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(setup: str, ranks: int, plan: Plan, kind: str) -> dict[str, Any]:
    """Return what each rank measures in one set-up."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (ranks, setup, folder, plan, kind), nprocs=ranks)
        each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return {"setup": setup, "ranks": ranks, "each": each}


def results(plan: Plan, counts: Sequence[int], kind: str) -> dict[str, Any]:
    """Return what a process without ranks counts, and what all ranks of all set-ups measure."""
    rows = [measure(s, n, plan, kind) for s in SETUPS for n in counts if n > 1 or s != HSDP]
    return {"alone": traffic(alone, plan.counted, torch.device("cpu")), "rows": rows}
