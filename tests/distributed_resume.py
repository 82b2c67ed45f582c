"""How two ranks go on from a save; run by ``ranks.launch``, judged in ``test_distributed``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distributed_loops import SPOILED, Loop, Net, make_config, outcome, sharded
from faulty import Log
from hybrid_predict import distributed as ranks


def halved(net: Net) -> Net:
    """Sharded, of 16-bit parameters, so that every rank carries its own part of rounding."""
    return sharded(net.bfloat16())


def resumed(
    name: str, wrap: Callable[[Net], Any], **changes: Any
) -> Callable[[Path], dict[str, Any]]:
    """FSDP2: the state of rank 0 continues on every rank."""

    def check(folder: Path) -> dict[str, Any]:
        config = make_config(count_flops=False, **changes)
        loop = Loop(wrap, config)
        loop.train(SPOILED)
        states = {
            "engine": loop.engine.state_dict(),
            "parts": copy.deepcopy(loop.state()),
            "whole": loop.weights(),
        }
        torch.save(states, folder / f"{name}-{ranks.rank()}.pt")
        dist.barrier()
        again = Loop(wrap, config)
        again.load(torch.load(folder / f"{name}-{ranks.rank()}.pt")["parts"])
        again.engine.load_state_dict(torch.load(folder / f"{name}-0.pt")["engine"])
        again.taken = loop.taken
        carries = [copy.deepcopy(x.engine.mapper.rounding.state_dict()) for x in (loop, again)]
        left, right = outcome(loop, loop.train(8)), outcome(again, again.train(8))
        refusal = ""
        try:
            again.engine.load_state_dict(torch.load(folder / f"{name}-1.pt")["engine"])
        except Exception as error:
            refusal = str(error)
        return {
            "left": left,
            "right": right,
            "refusal": refusal,
            "carries": carries,
        }

    return check


def alone(folder: Path) -> dict[str, Any]:
    """The last check, as it takes the group apart: the saved run goes on with one rank."""
    own = folder / f"alone-{dist.get_rank()}"
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{own}", rank=0, world_size=1)
    saved = torch.load(folder / "fsdp2-0.pt")
    loop = Loop(sharded, make_config(count_flops=False))
    with torch.no_grad():
        for name, p in loop.model.named_parameters():
            ranks.local(p).copy_(saved["whole"][name])
    with Log() as log:
        loop.engine.load_state_dict(saved["engine"])
        again = loop.engine.state_dict()["forecaster"]
        found = outcome(loop, loop.train(8))
    return {"history": [saved["engine"]["forecaster"], again], "heard": log.lines, **found}


CHECKS: dict[str, Callable[[Path], Any]] = {
    "fsdp2, resumed": resumed("fsdp2", sharded),
    "fsdp2, bfloat16, resumed": resumed("bfloat16", sharded, history_dtype="bfloat16"),
    "fsdp2, auto, resumed": resumed("auto", sharded, speedup="auto"),
    "fsdp2, half, resumed": resumed("half", halved),
    "alone": alone,
}
