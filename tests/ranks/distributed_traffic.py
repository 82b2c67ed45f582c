"""What a rank receives and computes for corrected updates; judged in ``test_traffic``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from distributed_four import hybrid_sharded
from hybrid_predict import HybridConfig, HybridEngine


def network() -> nn.Sequential:
    """The matrices of 4 small GPT-2 layers; the first and the last layer have other widths."""
    inner = [8, *(48 * share for _ in range(4) for share in (1, 3, 1, 4)), 48, 8]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(inner)))


class Received(TorchDispatchMode):
    """Counts bytes that this rank receives, by collective; those of a reduction are its size."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


def counted(wrap: Callable[[nn.Module], Any]) -> Callable[[Path], dict[str, Any]]:
    """What this rank receives and computes in the update of the fourth full step."""

    def check(folder: Path) -> dict[str, Any]:
        model = wrap(network())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        config = HybridConfig(speedup=1, total_steps=100, max_overhead=1e9, warmup_steps=1)
        received = Received()
        operations = FlopCounterMode(display=False)
        with HybridEngine(model, optimizer, config) as engine:
            for step in range(4):
                engine.before_step()
                loss = model(torch.randn(16, 8)).square().mean()
                loss.backward()
                with ExitStack() as counting:
                    if step == 3:
                        counting.enter_context(operations)
                        counting.enter_context(received)
                    optimizer.step()
                optimizer.zero_grad()
                engine.after_step(loss)
            (kept,) = engine._state.groups
            owned = Counter(kept.owners.ranks if kept.owners else [])[dist.get_rank()]
        return {
            "owned": owned,
            "operations": operations.get_total_flops(),
            "received": dict(received.counts),
        }

    return check


CHECKS: dict[str, Callable[[Path], Any]] = {
    "DDP": counted(DistributedDataParallel),
    "FSDP2": counted(fully_shard),
    "HSDP": counted(hybrid_sharded),
}
