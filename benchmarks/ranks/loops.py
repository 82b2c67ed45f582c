"""Training loops on several ranks, whose nets have the matrices of GPT-2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import Loop

WHOLE = {"max_overhead": 1e9}
"""Matrices are corrected whole, however small the batch."""

Wrap = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Size:
    """A net, and the rows of a batch of each rank."""

    width: int
    layers: int
    rows: int


def _hsdp(net: nn.Module) -> Any:
    shape = (2, dist.get_world_size() // 2)
    kind = next(net.parameters()).device.type
    return fully_shard(net, mesh=init_device_mesh(kind, shape, mesh_dim_names=("copy", "part")))


def alone(net: nn.Module) -> nn.Module:
    """A single process."""
    return net


HSDP = "HSDP, two copies"
SETUPS: dict[str, Wrap] = {"DDP": DistributedDataParallel, "FSDP2": fully_shard, HSDP: _hsdp}


def network(size: Size) -> nn.Sequential:
    """Return a net with the matrices of GPT-2; its first and last layers have other widths."""
    widths = [size.width, 3 * size.width, size.width, 4 * size.width]
    inner = [8, *(width for _ in range(size.layers) for width in widths), size.width, 8]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(inner)))


class RankLoop(Loop):
    """A loop of one rank; ``around`` is entered for each update of the optimizer."""

    def __init__(
        self, wrap: Wrap, size: Size, options: Mapping[str, Any] | None, device: torch.device
    ) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = wrap(network(size).to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._rows = size.rows
        super().__init__(self.model, self.optimizer, options, device)

    def full_step(self) -> Tensor:
        """Take one full step on random rows; return its loss."""
        loss: Tensor = self.model(torch.randn(self._rows, 8, device=self.device)).square().mean()
        loss.backward()
        with self.around():
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss
