"""What ranks with FSDP1 do in plain loops; judged in ``test_distributed``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from loops import same_bits
from torch.distributed.fsdp import (
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from distributed_loops import (
    AUTO,
    OWN,
    SHARD,
    SPOILED,
    Loop,
    Net,
    batch,
    build,
    make_config,
    moved,
    reductions,
    spoiled,
    trained,
)
from distributed_resume import one_rank, other, read_inside, resumed
from hybrid_predict import HybridEngine
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes, shards

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


def alone(net: Net) -> Net:
    """What a single process trains without FSDP1."""
    return net


def ranges(folder: Path) -> dict[str, Any]:
    """What torch's public calls say about ranges and gradients, and what is read of them."""
    model = fsdp1()(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = HybridEngine(model, optimizer, make_config())
    named = list(zip(engine.mapper.names, engine.mapper.parameters, strict=True))
    read = {n: shards.full_tensor(shards.local(p), p) for n, p in named}
    with FullyShardedDataParallel.summon_full_params(model):
        wanted = {n: p.detach().clone() for n, p in named}
    parts = [torch.equal(shards.local_shard(wanted[n], p), p.detach()) for n, p in named]
    before = [shards.has_gradient(p) for _, p in named]
    model(batch(1)).sum().backward()
    gathered = {n: shards.full_tensor(shards.local_gradient(p), p) for n, p in named}
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        gradients = {n: p.grad.clone() for n, p in named}
    return {
        "sizes": [p.numel() for _, p in named],
        "shapes": engine.mapper.shapes,
        "whole": same_bits(read, wanted) and same_bits(gathered, gradients),
        "parts": parts,
        "gradients": [before, [shards.has_gradient(p) for _, p in named]],
    }


def refused(folder: Path) -> dict[str, str]:
    """What is said to what FSDP1 can do and the plug-in cannot follow."""

    def turned(net: Net) -> Any:
        net.middle.weight.data = net.middle.weight.data.t().contiguous().t()
        return fsdp1()(net)

    def flat(net: Net) -> Any:
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"))

    told = {}
    for name, wrap in {"flat": flat, "turned": turned}.items():
        with pytest.raises(UnsupportedSetupError) as caught:
            Loop(wrap)
        told[name] = str(caught.value)
    model = fsdp1()(build())
    with mock.patch.object(model, "cpu_offload", CPUOffload(offload_params=True)):
        with pytest.raises(UnsupportedSetupError) as caught:
            Loop(lambda net: model)
        told["host"] = str(caught.value)
    return told


LOW = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

SETUPS: dict[str, tuple[Callable[[Net], Any], dict[str, Any]]] = {
    "fsdp1": (fsdp1(), {}),
    "fsdp1, gradients": (fsdp1(ShardingStrategy.SHARD_GRAD_OP), {"window": 2}),
    "fsdp1, whole": (fsdp1(ShardingStrategy.NO_SHARD), {}),
    "fsdp1, regrouped": (fsdp1(), {"frozen": 9}),
    "fsdp1, own update": (fsdp1(), {"config": make_config(updates=OWN)}),
    "fsdp1, auto": (fsdp1(), {"config": AUTO, "steps": 70}),
    "hybrid": (hybrid, {}),
}
GRADIENTS = {
    "fsdp1, spoiled shard": spoiled(fsdp1(), SHARD),
    "fsdp1, fused, spoiled shard": spoiled(fsdp1(), SHARD, fused=True),
}

CHECKS: dict[str, Callable[[Path], Any]] = {
    **{name: trained(wrap, **options) for name, (wrap, options) in SETUPS.items()},
    **GRADIENTS,
    "fsdp1, low precision": trained(fsdp1(mixed_precision=LOW)),
    "fsdp1, moved": moved(fsdp1()),
    "fsdp1, gradients, moved": moved(fsdp1(ShardingStrategy.SHARD_GRAD_OP)),
    "fsdp1, reductions": reductions(fsdp1()),
    "fsdp1, resumed": resumed("fsdp1", fsdp1()),
    "fsdp1, half, resumed": resumed("fsdp1-half", halved),
    "fsdp1, read inside a step": read_inside(fsdp1()),
    "fsdp1, saved inside a step": saved_inside,
    "fsdp1, ranges": ranges,
    "fsdp1, refused": refused,
    "more, fsdp1": lambda folder: other(torch.load(folder / "single.pt"), fsdp1()),
    "alone, fsdp1": one_rank("fsdp1", alone),
}
