"""What corrected updates send, compute and take on each of several ranks.

On 1, 2 and 4 processes of this machine's CPU, which talk through gloo.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.digests import code_digest
from benchmarks.measure import Loop, middle, take_turns, without_advice
from benchmarks.plan import Plan, Row, Selection, check_chosen
from benchmarks.step_cost import WAYS
from benchmarks.views import view
from hybrid_predict.runs.runtime import environment

COLLECTIVES = ("all_to_all_single", "all_gather_single", "all_gather_into_tensor", "all_reduce")

WHOLE = {"max_overhead": 1e9}
"""Matrices are corrected whole, however small the batch."""

TIMED = ("corrected", "both")
"""Of `WAYS`, besides plain training."""

Found = Mapping[str, Any]
Wrap = Callable[[nn.Module], Any]


class Size(NamedTuple):
    """A net, and the rows of a batch of each rank."""

    width: int
    layers: int
    rows: int


class Scope(NamedTuple):
    """Nets whose operations, and whose time, are measured; blocks, and full steps of a block."""

    counted: Size
    timed: Size
    blocks: int
    length: int


FULL = Scope(Size(48, 12, 16), Size(128, 4, 256), blocks=7, length=2)


def _hsdp(net: nn.Module) -> Any:
    shape = (2, dist.get_world_size() // 2)
    return fully_shard(net, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("copy", "part")))


def alone(net: nn.Module) -> nn.Module:
    """A single process."""
    return net


ALONE = "alone"
HSDP = "HSDP, two copies"
SETUPS: dict[str, Wrap] = {"DDP": DistributedDataParallel, "FSDP2": fully_shard, HSDP: _hsdp}


def network(size: Size) -> nn.Sequential:
    """Return a net with the matrices of GPT-2; its first and last layers have other widths."""
    widths = [size.width, 3 * size.width, size.width, 4 * size.width]
    inner = [8, *(width for _ in range(size.layers) for width in widths), size.width, 8]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(inner)))


class RankLoop(Loop):
    """A loop of one rank on random rows; ``around`` is entered for each update of the optimizer."""

    def __init__(self, wrap: Wrap, size: Size, options: Mapping[str, Any] | None) -> None:
        torch.manual_seed(0)
        model: nn.Module = wrap(network(size))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext

        def full_step() -> Tensor:
            loss: Tensor = model(torch.randn(size.rows, 8)).square().mean()
            loss.backward()
            with self.around():
                optimizer.step()
            optimizer.zero_grad()
            return loss

        super().__init__(model, optimizer, full_step, options)


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


def traffic(wrap: Wrap, size: Size) -> dict[str, Any]:
    """Return what this rank receives and computes for correcting in one full step."""
    loop = RankLoop(wrap, size, {"speedup": 1, **WHOLE})
    found = Counter[str]()
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


def seconds(wrap: Wrap, scope: Scope) -> dict[str, Any]:
    """Return milliseconds of processor time of full steps.

    Loops take turns, and what is added is their difference.
    """
    options = {"plain": None, **{way: {**(WAYS[way] or {}), **WHOLE} for way in TIMED}}
    loops = {way: RankLoop(wrap, scope.timed, given) for way, given in options.items()}
    rounds = take_turns(loops, scope.blocks, scope.length)
    for loop in loops.values():
        loop.close()
    scale = 1e3 / scope.length
    added = {
        way: middle([scale * (block[way] - block["plain"]) for block in rounds]) for way in TIMED
    }
    return {"plain_ms": scale * statistics.median(block["plain"] for block in rounds), **added}


def _work(rank: int, ranks: int, setup: str, folder: str, scope: Scope) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    wrap = SETUPS[setup]
    with without_advice():
        found = {**traffic(wrap, scope.counted), "ms": seconds(wrap, scope)}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


class RanksPlan(Plan[tuple[str, int]]):
    """A run is a set-up on some ranks, or a process without ranks, which counts alone."""

    def __init__(self, chosen: Selection, scope: Scope = FULL) -> None:
        check_chosen("tasks", chosen.tasks, (ALONE, *SETUPS))
        self._tasks = chosen.tasks or (ALONE, *SETUPS)
        self._scope = scope

    def keys(self, done: Mapping[tuple[str, int], Row]) -> Iterator[tuple[str, int]]:
        """Yield set-ups on 1, 2 and 4 ranks."""
        for setup in self._tasks:
            for ranks in (1,) if setup == ALONE else (1, 2, 4):
                if ranks > 1 or setup != HSDP:
                    yield setup, ranks

    def key(self, row: Row) -> tuple[str, int]:
        """Return set-up and ranks."""
        return row["setup"], row["ranks"]

    def work(self, key: tuple[str, int]) -> Row:
        """Return what each rank measures."""
        setup, ranks = key
        told = {"setup": setup, "ranks": ranks, "code": code_digest("corrected")}
        if setup == ALONE:
            return {**told, **traffic(alone, self._scope.counted)}
        with tempfile.TemporaryDirectory() as folder:
            spawn(_work, (ranks, setup, folder, self._scope), nprocs=ranks)
            each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
        return {**told, "each": each}

    def holds(self, row: Row) -> bool:
        """Return whether it comes from the present code."""
        return row.get("code") == code_digest("corrected")

    def tell(self, row: Row) -> str:
        """Return set-up and ranks."""
        return f"{row['setup']}, {row['ranks']} ranks"


def runs(results: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the runs of a results file."""
    yield {"setup": ALONE, "ranks": 1, **results["alone"]}
    yield from results["rows"]


def compiled(chosen: Selection, rows: Sequence[Row], whole: bool, before: Any) -> dict[str, Any]:
    """Return the content of a results file."""
    return {
        "alone": next((row for row in rows if row["setup"] == ALONE), {}),
        "rows": [row for row in rows if row["setup"] != ALONE],
        "environment": environment(),
    }


def by_formula(row: Found) -> float:
    """Return what all ranks of a row receive, in matrices, without padding.

    Directions of whole matrices go to all other ranks in DDP. With shards, parts of averages come
    to the rank that corrects a matrix, and parts of its direction go to every copy.
    """
    ranks = row["ranks"]
    if row["setup"] == "DDP":
        return float(ranks - 1)
    copies = 2 if row["setup"] == HSDP else 1
    return float(1 - copies / ranks + (ranks - 1) / ranks * copies)


def counted(found: Found) -> str:
    """Traffic and operations."""
    alone = found["alone"]
    rows = []
    for row in found["rows"]:
        each = row["each"]
        ranks = row["ranks"]
        if ranks == 1:
            continue
        whole = 4 * each[0]["elements"]
        names = ("all_to_all_single", "all_gather_single")
        large = sum(rank["received_bytes"].get(n, 0) for rank in each for n in names)
        small = max(rank["received_bytes"].get("all_reduce", 0) for rank in each)
        busiest = max(rank["operations"] for rank in each) / alone["operations"]
        rows.append(
            {
                "set-up": row["setup"],
                "ranks W": f"{ranks}",
                "matrices of each rank": ", ".join(f"{rank['owned']}" for rank in each),
                "received by all ranks, in matrices": f"{large / whole:.3f}",
                "by formula": f"{by_formula(row):.3f}",
                "reduced besides, bytes": f"{small:,}",
                "operations of the busiest rank x W / those of one rank alone": (
                    f"{busiest * ranks:.3f}"
                ),
            }
        )
    source = f"{alone['matrices']} matrices of {4 * alone['elements']:,} bytes together."
    return f"{source}\n\n{view(rows)}"


def timed(found: Found) -> str:
    """Time that a full step takes, and what the plug-in adds to it, on each rank."""
    bases: dict[str, float] = {}
    rows = []
    for row in found["rows"]:
        ms = [rank["ms"] for rank in row["each"]]
        plain = statistics.fmean(x["plain_ms"] for x in ms)
        added, both = (statistics.fmean(x[way]["ratio"] for x in ms) for way in TIMED)
        bases.setdefault(row["setup"], added)
        base = bases.get("FSDP2" if row["setup"] == HSDP else row["setup"], added)
        low = min(x["corrected"]["quartiles"][0] for x in ms)
        high = max(x["corrected"]["quartiles"][1] for x in ms)
        rows.append(
            {
                "set-up": row["setup"],
                "ranks W": f"{row['ranks']}",
                "plain full step, ms of a rank": f"{plain:.0f}",
                "corrections add, ms of a rank (quartiles)": (
                    f"{added:.0f} ({low:.0f} to {high:.0f})"
                ),
                "of what they add on one rank": f"{added / base:.2f}",
                "corrections add / plain": f"{added / plain:.2f}",
                "corrections and predicted steps add / plain": f"{both / plain:.2f}",
            }
        )
    return view(rows)


def blocks(found: Found) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    return {"ranks counted": partial(counted, found), "ranks timed": partial(timed, found)}
