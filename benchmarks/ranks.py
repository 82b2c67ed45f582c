"""Traffic and operations of corrected updates on several ranks, counted and by formula.

Run with: python -m benchmarks.ranks > docs/results/ranks.json
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import load
from benchmarks.table import markdown
from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.rules.budget import flatten_operations
from hybrid_predict.rules.owners import MOST_TOGETHER, deal

WIDTH, LAYERS = 48, 12

RANKS = (2, 4)

COLLECTIVES = ("all_to_all_single", "all_gather_single", "all_gather_into_tensor", "all_reduce")


def _fsdp2(net: nn.Module) -> Any:
    return fully_shard(net)


def _hsdp(net: nn.Module) -> Any:
    shape = (2, dist.get_world_size() // 2)
    return fully_shard(net, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("copy", "part")))


SETUPS: dict[str, Callable[[nn.Module], Any]] = {
    "DDP": DistributedDataParallel, "FSDP2": _fsdp2, "HSDP, two copies": _hsdp,
}  # fmt: skip


def network() -> nn.Sequential:
    """Return a net with the matrices of the layers of GPT-2, and layers of other widths at ends."""
    widths = [WIDTH, 3 * WIDTH, WIDTH, 4 * WIDTH]
    inner = [8, *(width for _ in range(LAYERS) for width in widths), WIDTH, 8]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(inner)))


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


def counted(wrap: Callable[[nn.Module], Any]) -> dict[str, Any]:
    """Return what this rank receives and computes for correcting in one full step."""
    torch.manual_seed(0)
    model = wrap(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config = HybridConfig(total_steps=20, speedup=1, max_overhead=1e9)
    engine, found = HybridEngine(model, optimizer, config), Counter[str]()
    for step in range(4):
        engine.before_step()
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        with FlopCounterMode(display=False) as operations:
            if step < 3:
                optimizer.step()
            else:
                with _received(found):
                    optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)
    (group,) = engine._state.groups
    owners = group.memory.owners or [0] * len(group.parameters)
    return {
        "matrices": len(owners),
        "elements": group.size,
        "owned": Counter(owners)[dist.get_rank() if dist.is_initialized() else 0],
        "operations": operations.get_total_flops(),
        "received_bytes": dict(found),
    }


def _work(rank: int, ranks: int, setup: str, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    place = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks)
    Path(folder, f"{rank}.json").write_text(json.dumps(counted(SETUPS[setup])))
    dist.barrier()
    dist.destroy_process_group()


def measure(setup: str, ranks: int) -> dict[str, Any]:
    """Return what each rank receives and computes in one set-up."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (ranks, setup, folder), nprocs=ranks)
        each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return {"setup": setup, "ranks": ranks, "each": each}


def by_count() -> str:
    """Return the table of what was counted."""
    results = load("ranks.json")
    alone, rows = results["alone"]["operations"], []
    for row in results["rows"]:
        each, ranks = row["each"], row["ranks"]
        whole = 4 * each[0]["elements"]
        names = ("all_to_all_single", "all_gather_single")
        large = sum(rank["received_bytes"].get(n, 0) for rank in each for n in names)
        small = max(rank["received_bytes"].get("all_reduce", 0) for rank in each)
        rows.append([
            row["setup"], f"{ranks}", ", ".join(f"{rank['owned']}" for rank in each),
            f"{large / whole:.3f}", f"{_formula(row['setup'], ranks):.3f}", f"{small:,}",
            f"{max(rank['operations'] for rank in each) / alone * ranks:.3f}",
        ])  # fmt: skip
    titles = ["set-up", "ranks W", "matrices of each rank", "received by all ranks, in matrices",
              "by formula", "reduced besides, bytes",
              "operations of the busiest rank x W / those of one rank alone"]  # fmt: skip
    matrices = results["alone"]["matrices"]
    source = f"{matrices} matrices of {4 * results['alone']['elements']:,} bytes together."
    return f"{source}\n\n{markdown(titles, rows)}"


def _formula(setup: str, ranks: int) -> float:
    """Return what all ranks receive, in matrices, without padding."""
    if setup == "DDP":
        return ranks - 1.0
    copies = 2 if "two" in setup else 1
    return (ranks / copies - 1) * copies / ranks + (ranks - 1) / ranks * copies


def _llama(layers: int, width: int, wide: int, keys: int) -> list[tuple[int, int]]:
    layer = [(width, width)] * 2 + [(keys, width)] * 2 + [(wide, width)] * 2 + [(width, wide)]
    return layer * layers


def _gpt2(layers: int, width: int) -> list[tuple[int, int]]:
    sides = [(3, 1), (1, 1), (4, 1), (1, 4)]
    return [(a * width, b * width) for a, b in sides] * layers


LARGEST = 4e9
"""Most parameters that plain data parallelism is shown for: with AdamW they take 64 GB a rank."""

MODELS: dict[str, tuple[list[tuple[int, int]], float]] = {
    "GPT-2, 124 M": (_gpt2(12, 768), 124e6),
    "GPT-2, 1.5 B": (_gpt2(48, 1600), 1.56e9),
    "Llama 3, 8 B": (_llama(32, 4096, 14336, 1024), 8.03e9),
    "Llama 3, 70 B": (_llama(80, 8192, 28672, 1024), 70.6e9),
}
"""Shapes of the hidden matrices, and number of parameters."""


def by_formula() -> str:
    """Return the table of what larger models and more ranks take."""
    rows = []
    for name, (shapes, parameters) in MODELS.items():
        for ranks in (8, 64, 1024):
            rows.append([name, f"{ranks:,}", *_foretold(shapes, parameters, ranks)])
    titles = ["model", "ranks W", "operations of the busiest rank x W / all",
              "DDP: received by a rank", "FSDP2: mean of ranks", "FSDP2: busiest rank",
              "before: every rank", "FSDP2 without the plug-in",
              "whole matrices at a time, busiest rank"]  # fmt: skip
    return markdown(titles, rows)


def _foretold(shapes: Sequence[tuple[int, int]], parameters: float, ranks: int) -> list[str]:
    sizes = list(map(prod, shapes))
    work = [flatten_operations([shape], 3, None, gram=False) for shape in shapes]
    owners = deal([w + n for w, n in zip(work, sizes, strict=True)], ranks)
    loads, own = Counter[int](), Counter[int]()
    for k, owner in enumerate(owners):
        loads[owner] += work[k]
        own[owner] += sizes[k]
    most, total = max(own.values()), sum(sizes)
    away = (ranks - 1) / ranks
    padded = (ranks - 1) * most
    shared = padded if ranks * most <= 2 * total else 2 * away * total
    together = max(max(sizes), min(most, MOST_TOGETHER))
    return [
        f"{max(loads.values()) * ranks / sum(loads.values()):.2f}",
        _bytes(4 * shared) if parameters < LARGEST else "",
        _bytes(4 * 2 * away * total / ranks),
        _bytes(4 * (away * most + (total - most) / ranks)),
        _bytes(4 * away * total),
        _bytes(2 * 3 * away * parameters),
        _bytes(4 * together),
    ]


def _bytes(number: float) -> str:
    scale, unit = (1e9, "GB") if number >= 1e9 else (1e6, "MB")
    return f"{number / scale:,.{0 if number >= 10 * scale else 1}f} {unit}"


BLOCKS: dict[str, Callable[[], str]] = {"ranks counted": by_count, "ranks foretold": by_formula}


def main() -> None:
    """Print what is counted, as JSON."""
    rows = [measure(s, n) for s in SETUPS for n in RANKS]
    print(json.dumps({"alone": counted(lambda net: net), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
