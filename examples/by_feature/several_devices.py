"""A torch loop on several processes: DDP, FSDP, HSDP or tensor parallelism.

Look at: SETUPS, which make the model parallel as always. The engine gets the result on every
process, and the loop is that of one process.

Run with: torchrun --nproc-per-node=2 examples/by_feature/several_devices.py --setup fsdp2
(about 10 seconds; --setup hsdp makes two copies, so that it shards from four processes on)
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hybrid_predict import HybridConfig, HybridEngine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def ddp(net: nn.Module) -> Any:
    return DistributedDataParallel(net)


def fsdp1(net: nn.Module) -> Any:
    return FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device(DEVICE))


def fsdp2(net: nn.Module) -> Any:
    return fully_shard(net)


def hsdp(net: nn.Module) -> Any:
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("copies", "shards"))
    return fully_shard(net, mesh=mesh)


def tp(net: nn.Module) -> Any:
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


SETUPS: dict[str, Callable[[nn.Module], Any]] = {
    "ddp": ddp, "fsdp1": fsdp1, "fsdp2": fsdp2, "hsdp": hsdp, "tp": tp,
}  # fmt: skip


def train(setup: str, steps: int = 200) -> HybridEngine:
    torch.manual_seed(0)  # the same weights on all processes
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = SETUPS[setup](net.to(DEVICE))
    # Each process has its own batches; with tensor parallelism all of them share one.
    batches = torch.Generator().manual_seed(0 if setup == "tp" else dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with HybridEngine(model, optimizer, HybridConfig(speedup=1.5, total_steps=steps)) as engine:
        while not engine.done:
            engine.before_step()
            x = torch.randn(256, 8, generator=batches).to(DEVICE)
            loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=SETUPS, default="ddp")
    setup = parser.parse_args().setup
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    engine = train(setup)
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, (engine.ledger.full_steps, engine.ledger.predicted_steps))
    if dist.get_rank() == 0:
        print(f"{setup} on {len(counts)} processes: {engine.ledger}")
        print("the same steps on all processes:", len(set(counts)) == 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
