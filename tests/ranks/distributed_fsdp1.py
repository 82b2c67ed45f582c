"""What ranks with FSDP1 do in plain loops; run by ``launcher.launch``, judged in ``test_fsdp1``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from distributed_loops import (
    AUTO,
    OWN,
    SHARD,
    WHITENED,
    Net,
    make_config,
    moved,
    spoiled,
    trained,
)
from distributed_resume import read_inside, resumed

FULL = ShardingStrategy.FULL_SHARD


def fsdp1(strategy: ShardingStrategy = FULL, **options: Any) -> Callable[[Net], Any]:
    """Some layers are wrapped alone, the others with the root, which keeps what it has gathered."""

    def wrap(net: Net) -> Any:
        one = partial(
            FullyShardedDataParallel, sharding_strategy=strategy, use_orig_params=True,
            device_id=torch.device("cpu"), **options
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated")
            net.first, net.branch = one(net.first), one(net.branch)
            return one(net)

    return wrap


def hybrid(net: Net) -> Any:
    """Sharded over half of the ranks, or over both of two."""
    size = dist.get_world_size()
    parts = max(2, size // 2)
    rows = [list(range(k, k + parts)) for k in range(0, size, parts)]
    inner, _ = dist.new_subgroups_by_enumeration(rows)
    outer, _ = dist.new_subgroups_by_enumeration([list(row) for row in zip(*rows, strict=True)])
    return fsdp1(ShardingStrategy.HYBRID_SHARD, process_group=(inner, outer))(net)


def halved(net: Net) -> Any:
    return fsdp1()(net.bfloat16())


LOW = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

SETUPS: dict[str, tuple[Callable[[Net], Any], dict[str, Any]]] = {
    "fsdp1": (fsdp1(), {}),
    "fsdp1, gradients": (fsdp1(ShardingStrategy.SHARD_GRAD_OP), {}),
    "fsdp1, whole": (fsdp1(ShardingStrategy.NO_SHARD), {}),
    "fsdp1, hybrid, whitened": (hybrid, {"config": make_config(updates=WHITENED)}),
    "fsdp1, late, fused": (fsdp1(), {"config": make_config(lag=3), "fused": True}),
    "fsdp1, accumulation": (fsdp1(), {"window": 2}),
    "fsdp1, whitened": (fsdp1(), {"config": make_config(updates=WHITENED)}),
    "fsdp1, regrouped": (fsdp1(), {"config": make_config(updates=WHITENED), "frozen": 9}),
    "fsdp1, own update": (fsdp1(), {"config": make_config(updates=OWN)}),
    "fsdp1, auto": (fsdp1(), {"config": AUTO, "steps": 70}),
}

CHECKS: dict[str, Callable[[Path], Any]] = {
    **{name: trained(wrap, **options) for name, (wrap, options) in SETUPS.items()},
    "fsdp1, spoiled shard": spoiled(fsdp1(), SHARD),
    "fsdp1, moved": moved(fsdp1()),
    "fsdp1, gradients, moved": moved(fsdp1(ShardingStrategy.SHARD_GRAD_OP)),
    "fsdp1, resumed": resumed("fsdp1", fsdp1()),
    "fsdp1, half, resumed": resumed("fsdp1 half", halved),
    "fsdp1, read inside a step": read_inside(fsdp1()),
}
