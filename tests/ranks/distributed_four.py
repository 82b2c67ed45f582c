"""What four ranks do; run by ``launcher.launch``, judged in ``test_owners``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy, fully_shard

from distributed_fsdp1 import fsdp1
from distributed_loops import Net, trained

STEPS = 8


def hybrid_sharded(net: Net) -> Net:
    """Sharded over half of the ranks, and the same on both halves."""
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "parts"))
    return fully_shard(net, mesh=mesh)


def hybrid(net: Net) -> Any:
    """Sharded over half of the ranks, or over both of two."""
    size = dist.get_world_size()
    parts = max(2, size // 2)
    rows = [list(range(k, k + parts)) for k in range(0, size, parts)]
    inner, _ = dist.new_subgroups_by_enumeration(rows)
    outer, _ = dist.new_subgroups_by_enumeration([list(row) for row in zip(*rows, strict=True)])
    return fsdp1(ShardingStrategy.HYBRID_SHARD, process_group=(inner, outer))(net)


CHECKS: dict[str, Callable[[Path], Any]] = {
    "hsdp": trained(hybrid_sharded, steps=STEPS),
    "hybrid": trained(hybrid, steps=STEPS),
}
