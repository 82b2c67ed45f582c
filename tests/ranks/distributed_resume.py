"""How two ranks go on from a save; run by ``launcher.launch``, judged in ``test_distributed``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from loops import same_bits
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from distributed_loops import (
    FEW,
    SPOILED,
    Loop,
    Net,
    make_config,
    outcome,
    sharded,
    tensor_parallel,
)
from faulty import Log
from hybrid_predict.errors import CheckpointError
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.shards import named_parameters


def halved(net: Net) -> Net:
    """Sharded, of 16-bit parameters, so that every rank carries its own part of rounding."""
    return sharded(net.bfloat16())


def resumed(
    name: str, wrap: Callable[[Net], Any], **changes: Any
) -> Callable[[Path], dict[str, Any]]:
    """FSDP2: the state of rank 0 continues on every rank."""

    def check(folder: Path) -> dict[str, Any]:
        config = make_config(**changes)
        loop = Loop(wrap, config)
        loop.train(SPOILED)
        states = {
            "engine": loop.engine.state_dict(),
            "parts": copy.deepcopy(loop.state()),
            "whole": loop.weights(),
        }
        torch.save(states, folder / f"{name}-{processes.rank()}.pt")
        dist.barrier()
        again = Loop(wrap, config)
        again.load(torch.load(folder / f"{name}-{processes.rank()}.pt")["parts"])
        again.engine.load_state_dict(torch.load(folder / f"{name}-0.pt")["engine"])
        again.taken = loop.taken
        left, right = outcome(loop, loop.train(8)), outcome(again, again.train(8))
        return {
            "left": left,
            "right": right,
            "refused": [refusal(again, folder / f"{name}-1.pt"), refusal(again, None)],
        }

    return check


def read_inside(wrap: Callable[[Net], Any]) -> Callable[[Path], dict[str, Any]]:
    """What state dicts hold after the backward pass of a verifying step, and the weights then."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap)
        loop.train(SPOILED)
        before = loop.weights()
        loop.engine.before_step()
        loop.loss().backward()
        moved = loop.weights()
        model = shards.unwrapped(loop.model)
        entries = {n: (shards.local(x), x) for n, x in model.state_dict().items()}
        gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        found = {
            "before": before,
            "read": {n: shards.full_tensor(*pair).clone() for n, pair in entries.items()},
            "gathered": {n: x.clone() for n, x in gathered.items()},
            "moved": moved,
            "left": loop.weights(),
        }
        loop.engine.abandon()
        return found

    return check


def read_on_one_rank(folder: Path) -> dict[str, Any]:
    """A verifying step in which the first rank alone reads a state dict."""
    loop = Loop(DistributedDataParallel)
    loop.train(SPOILED)
    before = loop.weights()
    loop.engine.before_step()
    loss = loop.loss()
    loss.backward()
    if processes.rank() == 0:
        shards.unwrapped(loop.model).state_dict()
    loop.optimizer.step()
    loop.optimizer.zero_grad()
    record = loop.engine.after_step(loss)
    same = same_bits(loop.weights(), before)
    return {"same": same, **outcome(loop, [record, *loop.train(3)])}


def refusal(loop: Loop, path: Path | None) -> dict[str, Any]:
    """What is said to the state of another rank, or to a damaged one, and whether that is all."""
    whole = loop.engine.state_dict()
    before = loop.engine._state.state_dict(whole=False)
    if path is not None:
        state = torch.load(path)["engine"]
    else:
        shared = [whole]
        dist.broadcast_object_list(shared)
        state = {**shared[0], "policy": {}}
    with pytest.raises(CheckpointError) as caught:
        loop.engine.load_state_dict(state)
    same = same_bits(loop.engine._state.state_dict(whole=False), before)
    return {"text": str(caught.value), "same": same}


def damaged_on_one_rank(folder: Path) -> bool:
    """Whether the other rank loads a state of which the last one has only a part."""
    loop = Loop(sharded)
    loop.train(SPOILED)
    shared = [loop.engine.state_dict()]
    dist.broadcast_object_list(shared)
    state = shared[0]
    try:
        loop.engine.load_state_dict({**state, "tensors": {}} if processes.rank() else state)
        loads = True
    except CheckpointError:
        loads = False
    dist.barrier()
    return loads


def other(saved: dict[str, Any], wrap: Callable[[Net], Any] = sharded) -> dict[str, Any]:
    """A run that another number of ranks has saved."""
    loop = Loop(wrap)
    with torch.no_grad():
        for name, p in named_parameters(shards.unwrapped(loop.model)):
            shards.local(p).copy_(shards.local_shard(saved["whole"][name], p))
    with Log() as log:
        loop.engine.load_state_dict(saved["engine"])
        again = loop.engine.state_dict()["tensors"]["groups"]
        found = outcome(loop, loop.train(8))
    return {"groups": [saved["engine"]["tensors"]["groups"], again], "heard": log.lines, **found}


def one_rank(folder: Path) -> dict[str, Any]:
    """The last check, as it takes the group apart: a saved run goes on with one rank."""
    own = folder / f"alone-{dist.get_rank()}"
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{own}", rank=0, world_size=1)
    return other(torch.load(folder / "fsdp2-0.pt"))


def save_single(folder: Path) -> None:
    """What a single process saves, from which two ranks go on."""
    loop = Loop()
    loop.train(SPOILED)
    states = {"engine": loop.engine.state_dict(), "whole": loop.weights()}
    torch.save(states, folder / "single.pt")


CHECKS: dict[str, Callable[[Path], Any]] = {
    "fsdp2, resumed": resumed("fsdp2", sharded),
    "fsdp2, half, resumed": resumed("half", halved),
    "fsdp2, bfloat16, in turns, resumed": resumed(
        "turns", sharded, max_overhead=FEW, history_dtype="bfloat16"
    ),
    "ddp, read inside a step": read_inside(DistributedDataParallel),
    "fsdp2, half, read inside a step": read_inside(halved),
    "tensor parallelism, read inside a step": read_inside(tensor_parallel),
    "ddp, read on one rank": read_on_one_rank,
    "fsdp2, damaged on one rank": damaged_on_one_rank,
    "more": lambda folder: other(torch.load(folder / "single.pt")),
    "alone": one_rank,
}
