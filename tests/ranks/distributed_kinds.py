"""How two ranks agree on kinds; run by ``launcher.launch``, judged in ``test_distributed``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kind_cases import CountDecoder, square
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from distributed_loops import make_config
from hybrid_predict import HybridEngine
from hybrid_predict.ranks import processes


def sharded(net: Any) -> Any:
    fully_shard(net.px_decoder)
    return fully_shard(net)


def wrapped(net: Any) -> Any:
    one = partial(FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu"))
    net.px_decoder = one(net.px_decoder)
    return one(net)


def kinds(wrap: Callable[[Any], Any], told: int) -> Callable[[Path], tuple[list[str], list[str]]]:
    """The kinds after a full step with graphs on some ranks, and the ledger's reasons."""

    def check(folder: Path) -> tuple[list[str], list[str]]:
        torch.manual_seed(0)
        net = CountDecoder()
        del net.px_r_decoder, net.px_dropout_decoder
        net.px_decoder.extend([nn.Linear(8, 8), nn.ReLU()])
        model = wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = HybridEngine(model, optimizer, make_config())
        engine.before_step()
        loss = square(model)
        loss.backward()
        optimizer.step()
        engine.after_step(loss if processes.rank() < told else loss.item())
        engine.detach()
        pairs = zip(engine.mapper.names, engine.mapper.kinds, strict=True)
        reasons = [event["reason"] for event in engine.ledger.events]
        return sorted(name for name, kind in pairs if kind == "head"), reasons

    return check


CHECKS = {
    "ddp, kinds of the first rank": kinds(DistributedDataParallel, 1),
    "fsdp2, kinds": kinds(sharded, 2),
    "fsdp1, kinds": kinds(wrapped, 2),
}
