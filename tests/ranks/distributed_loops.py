"""What two ranks do in plain loops; run by ``launcher.launch``, judged in ``test_distributed``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from loops import hurry, same_bits
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hybrid_predict import HybridConfig, HybridEngine, MomentumPredictor, SpectralUpdate, StepRecord
from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.shards import named_parameters
from hybrid_predict.updates import AbstractUpdate, UpdateState

STEPS, SPOILED = 21, 12


def as_dtensor(shard: Tensor, tensor: Any) -> Any:
    """Wrap a local shard as a DTensor placed like a tensor, unless that is a plain one."""
    if not isinstance(tensor, DTensor):
        return shard
    form = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(shard, tensor.device_mesh, tensor.placements, run_check=False, **form)


FEW = 1.5e-4
"""A ``max_overhead`` that allows corrections of each matrix in some full steps only."""


@dataclass(frozen=True, kw_only=True)
class OwnUpdate(AbstractUpdate):
    """A user's update with arrays as large as the parameters."""

    decay: float = 0.8

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        squares = [torch.zeros(x.shape) for x in like]
        return UpdateState({"squares": squares})

    def direction(
        self, state: UpdateState, members: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        found = []
        for k, matrix in zip(members, matrices, strict=True):
            squares = state.arrays["squares"][k]
            squares.lerp_(matrix.square(), 0.1)
            scaled = matrix / squares.sqrt().add(1e-3)
            found.append(-scaled / scaled.norm().clamp_min(1e-12))
        return found


OWN = {"hidden": OwnUpdate()}


def make_config(**changes: Any) -> HybridConfig:
    momentum = MomentumPredictor(decay=0.8, gated=False)
    defaults = {
        "total_steps": 60,
        "warmup_steps": 2,
        "full_steps": 1,
        "predict_steps": 1,
        "max_overhead": 100.0,
        "updates": {"hidden": SpectralUpdate(decay=0.8)},
        "predictors": {"hidden": momentum, "vector": momentum},
    }
    return HybridConfig(**{**defaults, **changes})


AUTO = make_config(total_steps=200, speedup="auto", full_steps=None, predict_steps=None)


class Net(nn.Module):
    """A net with an odd number of rows, and a branch that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(8, 16), nn.Linear(16, 15)
        self.branch, self.last = nn.Linear(15, 15), nn.Linear(15, 1)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        x = torch.tanh(self.middle(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.branch(x)) if branch else x)


def build() -> Net:
    torch.manual_seed(3)
    return Net()


def batch(step: int, shared: bool = False) -> Tensor:
    """This rank's part of a batch; without a group, or if it is shared, all of it."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return x if shared else x[processes.rank() :: processes.size()]


@dataclass(frozen=True)
class Spoil:
    """What goes wrong in one full step, on the last rank alone."""

    factor: float = 1.0  # of the loss, and of its gradients with it
    offset: float = 0.0  # of nothing but the loss
    entry: float | None = None  # of the gradients, after the backward pass


class Loop:
    def __init__(
        self,
        wrap: Callable[[Net], Any] = lambda net: net,
        config: HybridConfig | None = None,
        window: int = 1,
        skips: Callable[[int], bool] = lambda step: False,
        shared: bool = False,
        fused: bool = False,
        steps: int = STEPS,
        frozen: int | None = None,
        period: int | None = None,
    ) -> None:
        self.model = wrap(build())
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-2, fused=fused or None)
        self.engine = HybridEngine(self.model, self.optimizer, config or make_config())
        if self.engine.config.paced:
            hurry(self.engine)
        self.window, self.skips, self.shared, self.steps = window, skips, shared, steps
        self.taken, self.frozen, self.period = 0, frozen, period

    def loss(self) -> Tensor:
        x = batch(self.taken, self.shared).to(next(self.model.parameters()).dtype)
        self.taken += 1
        branch = not self.skips(self.taken)
        return (self.model(x, branch) - x.sum(1, keepdim=True).sin()).square().mean()

    def step(self, spoil: Spoil | None = None, stop: bool | None = None) -> StepRecord:
        bad = spoil if spoil and processes.rank() == processes.size() - 1 else Spoil()
        if self.taken == self.frozen:
            shards.unwrapped(self.model).middle.weight.requires_grad_(False)
        if self.period is not None:  # turns depend on the number of ranks
            for group in self.engine._state.groups:
                group.set_period(self.period, [k % self.period for k in range(len(group.names))])
        self.engine.before_step()
        for k in range(self.window):
            waits = k + 1 < self.window and hasattr(self.model, "no_sync")
            with self.model.no_sync() if waits else nullcontext():
                loss = self.loss() / self.window * bad.factor + bad.offset
                loss.backward()
        if bad.entry is not None:
            shards.local(next(self.model.parameters()).grad).view(-1)[0] = bad.entry
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.engine.after_step(loss * self.window, stop=stop)

    def train(self, steps: int | None = None) -> list[StepRecord]:
        return [self.step() for _ in range(self.steps if steps is None else steps)]

    def weights(self) -> dict[str, Tensor]:
        """The live parameters, whole."""
        named = named_parameters(shards.unwrapped(self.model))
        return {n: shards.full_tensor(shards.local(p), p).clone() for n, p in named}

    def state(self) -> dict[str, Tensor]:
        """This rank's part of weights and optimizer state."""
        entries = {}
        for k, p in enumerate(self.model.parameters()):
            entries[f"{k}"] = shards.local(p).clone()
            for name, value in self.optimizer.state[p].items():
                entries[f"{k}.{name}"] = shards.local(value).clone()
        return entries

    def load(self, state: dict[str, Tensor]) -> None:
        for k, p in enumerate(self.model.parameters()):
            shards.local(p).copy_(state[f"{k}"])
            own = {n.partition(".")[2]: v for n, v in state.items() if n.startswith(f"{k}.")}
            self.optimizer.state[p] = {
                n: v.clone() if n == "step" else as_dtensor(v.clone(), p) for n, v in own.items()
            }


def outcome(loop: Loop, records: list[StepRecord]) -> dict[str, Any]:
    """What came of a run, without host seconds, which are each rank's own."""
    ledger = loop.engine.ledger.summary()
    own = ("seconds", "overhead")
    return {
        "weights": loop.weights(),
        "records": records,
        "ledger": {k: v for k, v in ledger.items() if not any(word in k for word in own)},
    }


def ddp(**options: Any) -> Callable[[Net], Any]:
    return lambda net: DistributedDataParallel(net, **options)


def sharded(net: Net) -> Net:
    """Some layers in groups of their own, the others in that of the root, which stay whole."""
    for child in (net.first, net.branch):
        fully_shard(child)
    return fully_shard(net)


def wide(net: Net) -> Net:
    """Sharded along the columns where they can be."""
    return fully_shard(net, shard_placement_fn=lambda p: Shard(1) if p.shape == (15, 16) else None)


def tensor_parallel(net: Net) -> Net:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"first": ColwiseParallel(), "middle": RowwiseParallel()}
    return parallelize_module(net, mesh, plan)


def trained(*args: Any, **options: Any) -> Callable[[Path], dict[str, Any]]:
    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(*args, **options)
        return outcome(loop, loop.train())

    return check


def spoiled(
    wrap: Callable[[Net], Any], spoil: Spoil, **options: Any
) -> Callable[[Path], dict[str, Any]]:
    """A verifying step in which something is wrong on the last rank alone."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap, **options)
        loop.train(SPOILED)
        before = loop.state()
        record = loop.step(spoil)
        same = same_bits(before, loop.state())
        return {"same": same, **outcome(loop, [record, *loop.train(3)])}

    return check


def refused(folder: Path) -> dict[str, str]:
    """What set-ups that cannot work are told, on this rank."""

    def both(net: Net) -> Net:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(net, mesh["tensor"], {"first": ColwiseParallel()})
        return fully_shard(net, mesh=mesh["data"])

    told = {}
    setups: dict[str, tuple[Callable[[Net], Any], int]] = {
        "fully_shard over tensor parallelism": (both, 60),
        "another configuration": (ddp(), 60 + processes.rank()),
    }
    for name, (wrap, steps) in setups.items():
        with pytest.raises(UnsupportedSetupError) as caught:
            Loop(wrap, make_config(total_steps=steps))
        told[name] = str(caught.value)
    return told


def asked(wrap: Callable[[Net], Any], late: bool) -> Callable[[Path], dict[str, Any]]:
    """One rank asks a loop of one's own to stop; which full steps tell that it was asked.

    If ``late``, measurements are read as late as those on a device.
    """

    def check(folder: Path) -> dict[str, Any]:
        with mock.patch("hybrid_predict.state.on_host", lambda _: not late):
            loop = Loop(wrap)
            for _ in range(10):
                loop.step(stop=False)
            records = [loop.step(stop=k == 0 and processes.rank() == 1) for k in range(5)]
            loop.engine._fall_back("told so")
            after = [loop.step(stop=bool(k and processes.rank())).stop for k in range(2)]
        return {"stops": [r.stop for r in records], "plain": after}

    return check


SETUPS: dict[str, tuple[Callable[[Net], Any], dict[str, Any]]] = {
    "ddp": (ddp(static_graph=True), {}),
    "ddp, accumulation": (ddp(), {"window": 2}),
    "ddp, unused parameters, in turns": (
        ddp(find_unused_parameters=True), {"skips": lambda step: step % 3 == 2, "period": 3},
    ),
    "fsdp2": (sharded, {}),
    "fsdp2, bfloat16": (sharded, {"config": make_config(history_dtype="bfloat16")}),
    "fsdp2, columns": (wide, {}),
    "fsdp2, own update, regrouped": (sharded, {"config": make_config(updates=OWN), "frozen": 9}),
    "fsdp2, auto": (sharded, {"config": AUTO, "steps": 50}),
    "tensor parallelism": (tensor_parallel, {"shared": True}),
}  # fmt: skip
"""How a model is made parallel, and the loop around it; a single process takes the same loop."""

GRADIENT, SHARD = Spoil(factor=float("nan")), Spoil(entry=float("inf"))
LOSS, SPIKE = Spoil(offset=float("nan")), Spoil(offset=1e4)

GRADIENTS = {
    "ddp, spoiled gradient": spoiled(ddp(), GRADIENT),
    "fsdp2, fused, spoiled shard": spoiled(sharded, SHARD, fused=True),
    "tensor parallelism, spoiled shard": spoiled(tensor_parallel, SHARD, shared=True),
}
LOSSES = {"ddp, spoiled loss": spoiled(ddp(), LOSS), "fsdp2, spiked loss": spoiled(sharded, SPIKE)}

CHECKS: dict[str, Callable[[Path], Any]] = {
    **{name: trained(wrap, **options) for name, (wrap, options) in SETUPS.items()},
    **GRADIENTS,
    **LOSSES,
    "refused": refused,
    "ddp, asked": asked(ddp(), late=False),
    "fsdp2, late, asked": asked(sharded, late=True),
}
