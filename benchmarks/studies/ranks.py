"""What corrected updates send and compute on each of several ranks.

On 1, 2 and 4 processes of this machine's CPU, which talk through gloo.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.digests import code_digest
from benchmarks.plan import Plan, Row, Selection, check_chosen
from benchmarks.step_cost import Loop, without_advice
from benchmarks.views import view
from hybrid_predict.runs.runtime import environment

Found = Mapping[str, Any]
Wrap = Callable[[nn.Module], Any]


class Size(NamedTuple):
    """A net, and the rows of a batch of each rank."""

    width: int
    layers: int
    rows: int


FULL = Size(48, 12, 16)


def _hsdp(net: nn.Module) -> Any:
    shape = (2, dist.get_world_size() // 2)
    return fully_shard(net, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("copy", "part")))


ALONE = "alone"
HSDP = "HSDP, two copies"
SETUPS: dict[str, Wrap] = {"DDP": DistributedDataParallel, "FSDP2": fully_shard, HSDP: _hsdp}


def network(size: Size) -> nn.Sequential:
    """Return a net with the matrices of GPT-2; its first and last layers have other widths."""
    widths = [size.width, 3 * size.width, size.width, 4 * size.width]
    inner = [8, *(width for _ in range(size.layers) for width in widths), size.width, 8]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(inner)))


class Received(TorchDispatchMode):
    """Counts bytes that this rank receives, by collective; those of a reduction are its size."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count its result if it is a collective."""
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("_c10d_functional::").removeprefix("c10d::")
        sizes = [x.numel() * x.element_size() for x in tree_leaves(args) if torch.is_tensor(x)]
        if name == "all_gather_into_tensor":
            self.counts["all_gather"] += sizes[0] * (args[1] - 1)
        elif name == "allgather_":
            self.counts["all_gather"] += sum(sizes[:-1]) - sizes[-1]
        elif name == "alltoall_base_":
            others = sum(args[3]) - args[3][dist.get_rank()]
            self.counts["all_to_all"] += others * args[0].element_size()
        elif name == "broadcast_" and args[2] != dist.get_rank():
            self.counts["broadcast"] += sizes[0]
        elif name == "allreduce_":
            self.counts["all_reduce"] += sizes[0]
        return result


def traffic(wrap: Wrap, size: Size) -> dict[str, Any]:
    """Return what this rank receives and computes for correcting in one full step."""
    torch.manual_seed(0)
    model: nn.Module = wrap(network(size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    counters: list[Any] = []

    def full_step() -> Tensor:
        loss: Tensor = model(torch.randn(size.rows, 8)).square().mean()
        loss.backward()
        with ExitStack() as stack:
            for counter in counters:
                stack.enter_context(counter)
            optimizer.step()
        optimizer.zero_grad()
        return loss

    # Matrices are corrected whole, however small the batch.
    loop = Loop(model, optimizer, full_step, {"speedup": 1, "max_overhead": 1e9})
    loop.run(3)
    received = Received()
    operations = FlopCounterMode(display=False)
    counters += [operations, received]
    loop.step()
    (kept,) = loop.engine._state.groups  # type: ignore[union-attr]
    owners = kept.owners or [0] * len(kept.parameters)
    loop.close()
    return {
        "matrices": len(owners),
        "elements": sum(p.numel() for p in kept.parameters),
        "owned": Counter(owners)[dist.get_rank() if dist.is_initialized() else 0],
        "operations": operations.get_total_flops(),
        "received_bytes": dict(received.counts),
    }


def _work(rank: int, ranks: int, setup: str, folder: str, size: Size) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    with without_advice():
        found = traffic(SETUPS[setup], size)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


class RanksPlan(Plan[tuple[str, int]]):
    """A run is a set-up on some ranks, or a process without ranks, which counts alone."""

    def __init__(self, chosen: Selection, size: Size = FULL) -> None:
        check_chosen("tasks", chosen.tasks, (ALONE, *SETUPS))
        self._tasks = chosen.tasks or (ALONE, *SETUPS)
        self._size = size

    def keys(self, done: Mapping[tuple[str, int], Row]) -> Iterator[tuple[str, int]]:
        """Yield set-ups on 2 and 4 ranks."""
        for setup in self._tasks:
            for ranks in (1,) if setup == ALONE else (2, 4):
                yield setup, ranks

    def key(self, row: Row) -> tuple[str, int]:
        """Return set-up and ranks."""
        return row["setup"], row["ranks"]

    def work(self, key: tuple[str, int]) -> Row:
        """Return what each rank counts."""
        setup, ranks = key
        told = {"setup": setup, "ranks": ranks, "code": code_digest("corrected")}
        if setup == ALONE:
            return {**told, **traffic(nn.Sequential, self._size)}
        with tempfile.TemporaryDirectory() as folder:
            spawn(_work, (ranks, setup, folder, self._size), nprocs=ranks)
            each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
        return {**told, "each": each}

    def holds(self, row: Row) -> bool:
        """Return whether it comes from the present code."""
        return row.get("code") == code_digest("corrected")

    def tell(self, row: Row) -> str:
        """Return set-up and ranks."""
        return f"{row['setup']}, {row['ranks']} ranks"


def runs(results: Found) -> Iterator[Row]:
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


def received(row: Found) -> float:
    """Return what all ranks of a row receive, in matrices, without what is reduced."""
    whole = 4 * row["each"][0]["elements"]
    large = (n for rank in row["each"] for name, n in rank["received_bytes"].items()
             if name != "all_reduce")  # fmt: skip
    return sum(large) / whole


def counted(found: Found) -> str:
    """List traffic and operations, a row per set-up and number of ranks."""
    alone = found["alone"]
    rows = []
    for row in found["rows"]:
        each = row["each"]
        ranks = row["ranks"]
        if ranks == 1:
            continue
        small = max(rank["received_bytes"].get("all_reduce", 0) for rank in each)
        busiest = max(rank["operations"] for rank in each) / alone["operations"]
        rows.append(
            {
                "set-up": row["setup"],
                "ranks W": f"{ranks}",
                "matrices of each rank": ", ".join(f"{rank['owned']}" for rank in each),
                "received by all ranks, in matrices": f"{received(row):.3f}",
                "reduced besides, bytes": f"{small:,}",
                "operations of the busiest rank x W / those of one rank alone": (
                    f"{busiest * ranks:.3f}"
                ),
            }
        )
    source = f"{alone['matrices']} matrices of {4 * alone['elements']:,} bytes together."
    return f"{source}\n\n{view(rows)}"


def blocks(found: Found) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the page, by name."""
    return {"ranks counted": partial(counted, found)}
