"""What ranks with FSDP1 do in plain loops; judged in ``test_distributed``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import same_bits
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    ShardingStrategy,
    StateDictType,
)

from distributed_loops import OWN, SHARD, SPOILED, Loop, Net, make_config, spoiled, trained
from distributed_resume import other, resumed
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes

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


def saved_inside(folder: Path) -> dict[str, bool]:
    """What Lightning saves and loads between the backward pass and the update of a step."""
    loop = Loop(fsdp1())
    loop.train(SPOILED)
    before = loop.weights()
    loop.engine.before_step()
    loop.loss().backward()
    moved = loop.weights()
    using = partial(FullyShardedDataParallel.state_dict_type, loop.model)
    with using(StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        full = {n: x.clone() for n, x in loop.model.state_dict().items()}
    with using(StateDictType.SHARDED_STATE_DICT):
        state = loop.model.state_dict()
    parts = {n: [s.tensor for s in x.local_shards()] for n, x in state.items()}
    rows = {n: list(x.chunk(2)[processes.rank() :][:1]) for n, x in before.items()}
    left = same_bits(loop.weights(), before)
    wanted = {n: x + 1.0 for n, x in before.items()}
    with using(StateDictType.FULL_STATE_DICT):
        loop.model.load_state_dict({n: x.clone() for n, x in wanted.items()})
    loop.engine.abandon()
    return {
        "moved": not same_bits(moved, before),
        "full": same_bits(full, before if processes.rank() == 0 else {}),
        "sharded": same_bits(parts, rows),
        "left": left,
        "loaded": same_bits(loop.weights(), wanted),
    }


def refused(folder: Path) -> str:
    """What is said to flat parameters in the place of the original ones."""
    with pytest.raises(UnsupportedSetupError) as caught:
        Loop(lambda net: FullyShardedDataParallel(net, device_id=torch.device("cpu")))
    return str(caught.value)


SETUPS: dict[str, tuple[Callable[[Net], Any], dict[str, Any]]] = {
    "fsdp1": (fsdp1(), {}),
    "fsdp1, gradients": (fsdp1(ShardingStrategy.SHARD_GRAD_OP), {"window": 2}),
    "fsdp1, whole": (fsdp1(ShardingStrategy.NO_SHARD), {}),
    "fsdp1, own update, regrouped": (fsdp1(), {"config": make_config(updates=OWN), "frozen": 9}),
}

CHECKS: dict[str, Callable[[Path], Any]] = {
    **{name: trained(wrap, **options) for name, (wrap, options) in SETUPS.items()},
    "fsdp1, spoiled shard": spoiled(fsdp1(), SHARD),
    "fsdp1, resumed": resumed("fsdp1", fsdp1()),
    "fsdp1, saved inside a step": saved_inside,
    "fsdp1, refused": refused,
    "fsdp1, more": lambda folder: other(torch.load(folder / "single.pt"), fsdp1()),
}
