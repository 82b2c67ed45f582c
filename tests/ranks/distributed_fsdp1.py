"""What ranks with FSDP1 do in plain loops; judged in ``test_fsdp1``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from distributed_loops import Net, trained


def fsdp1(
    net: Net, strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD, **options: Any
) -> Any:
    options = {"sharding_strategy": strategy, "device_id": torch.device("cpu"), **options}
    wrap = partial(FSDP, use_orig_params=True, **options)
    net.first, net.branch = wrap(net.first), wrap(net.branch)
    return wrap(net)


CHECKS: dict[str, Callable[[Path], Any]] = {
    "fsdp1": trained(fsdp1),
}
