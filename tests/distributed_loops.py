"""What two ranks do in plain loops; run by ``ranks.launch``, judged in ``test_distributed``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from faulty import Log
from hybrid_predict import (
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    SpectralPredictor,
    StepRecord,
    UnsupportedSetupError,
)
from hybrid_predict import distributed as ranks
from hybrid_predict.backends import ShardedBackend
from hybrid_predict.gradients import GradientProbe

STEPS, SPOILED = 24, 12


def make_config(**changes: Any) -> HybridConfig:
    spectral = SpectralPredictor(decay=0.8, refresh_every=3)
    defaults = {"total_steps": 45, "predictors": {"hidden": spectral, "vector": "momentum"}}
    return HybridConfig(**{**defaults, **changes})


LONG = {
    "predictors": {"hidden": "linear"},
    "horizon": FixedHorizon(updates=9.0),
    "policy": "implied",
    "period": 2,
    "speedup": 1.2,
}
"""Long forecasts that the optimizer's moments follow."""


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
    return x if shared else x[ranks.rank() :: ranks.size()]


class Loop:
    """A model in a plain loop."""

    def __init__(
        self,
        wrap: Callable[[Net], Any] = lambda net: net,
        config: HybridConfig | None = None,
        window: int = 1,
        skips: Callable[[int], bool] = lambda step: False,
        shared: bool = False,
    ) -> None:
        self.model = wrap(build())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.engine = HybridEngine(self.model, self.optimizer, config or make_config())
        self.window, self.skips, self.shared, self.taken = window, skips, shared, 0

    def loss(self) -> Tensor:
        x = batch(self.taken, self.shared).to(next(self.model.parameters()).dtype)
        self.taken += 1
        branch = not self.skips(self.taken)
        return (self.model(x, branch) - x.sum(1, keepdim=True).sin()).square().mean()

    def step(self, spoil: float = 0.0) -> StepRecord:
        self.engine.before_step(lambda: float(self.loss()))
        for k in range(self.window):
            waits = k + 1 < self.window and isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync() if waits else nullcontext():
                loss = self.loss() / self.window + spoil
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.engine.after_step(loss * self.window)

    def train(self, steps: int = STEPS) -> list[StepRecord]:
        return [self.step() for _ in range(steps)]

    def weights(self) -> dict[str, Tensor]:
        """The live parameters, whole."""
        named = ranks.unwrapped(self.model).named_parameters()
        return {n: ranks.whole(ranks.local(p), p).clone() for n, p in named}

    def averages(self) -> float:
        """Norm of what predictors remember of gradients, on this rank."""
        histories = [g.state.average for g in self.engine._forecaster._groups]
        return float(torch.cat([x.float().flatten() for h in histories for x in h]).norm())

    def state(self) -> dict[str, Tensor]:
        """This rank's part of weights and optimizer state."""
        entries = {}
        for k, p in enumerate(self.model.parameters()):
            entries[f"{k}"] = ranks.local(p).clone()
            for name, value in self.optimizer.state[p].items():
                entries[f"{k}.{name}"] = ranks.local(value).clone()
        return entries

    def load(self, state: dict[str, Tensor]) -> None:
        for p in self.model.parameters():
            self.optimizer.state[p] = {}
        for k, p in enumerate(self.model.parameters()):
            for name, value in state.items():
                own, _, entry = name.partition(".")
                if own == str(k) and entry == "step":
                    self.optimizer.state[p]["step"] = value.clone()
                elif own == str(k) and entry:
                    self.optimizer.state[p][entry] = ranks.like(value.clone(), p)
                elif own == str(k):
                    ranks.local(p).copy_(value)


def counts(loop: Loop) -> dict[str, Any]:
    """The ledger without host seconds, which are each rank's own."""
    return {k: v for k, v in loop.engine.ledger.summary().items() if "seconds" not in k
            and k != "overhead_fraction"}  # fmt: skip


def outcome(loop: Loop, records: list[StepRecord]) -> dict[str, Any]:
    return {
        "weights": loop.weights(),
        "records": records,
        "ledger": counts(loop),
        "horizons": loop.engine.horizons,
    }


def ddp(**options: Any) -> Callable[[Net], Any]:
    return lambda net: DistributedDataParallel(net, **options)


def sharded(net: Net) -> Net:
    """Some layers in groups of their own, the others in that of the root, which stay whole."""
    for child in (net.first, net.branch):
        fully_shard(child)
    return fully_shard(net)


def tensor_parallel(net: Net) -> Net:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"first": ColwiseParallel(), "middle": RowwiseParallel()}
    return parallelize_module(net, mesh, plan)


def trained(*args: Any, **options: Any) -> Callable[[Path], dict[str, Any]]:
    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(*args, **options)
        return outcome(loop, loop.train())

    return check


def reductions(wrap: Callable[[Net], Any]) -> Callable[[Path], list[int]]:
    """How often our code reduces in each full step."""

    def check(folder: Path) -> list[int]:
        loop, found = Loop(wrap), []
        calls, original = [0], ranks._all_reduced

        def counted(*args: Any) -> Tensor:
            calls[0] += 1
            return original(*args)

        ranks._all_reduced = counted
        try:
            for _ in range(10):
                calls[0] = 0
                loop.step()
                found.append(calls[0])
        finally:
            ranks._all_reduced = original
        return found

    return check


def measured(wrap: Callable[[Net], Any], **options: Any) -> Callable[[Path], dict[str, Any]]:
    """Norms, products and flattened spectra over the ranks, of gradients and parameters."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap, **options)
        loop.loss().backward()
        parameters = list(loop.model.parameters())
        backend = ShardedBackend(parameters)
        parts = [ranks.local(p) for p in parameters]
        grads = [ranks.local_gradient(p) for p in parameters]
        lengths = backend.norms(parts)
        target = [torch.empty_like(x) for x in parts]
        rows = backend.zero_rows(parts)
        turn = backend.cosines(grads, parts)
        flat, rows = backend.flatten_spectrum(target, parts, grads, turn, lengths, 5, rows)
        total = GradientProbe(parameters).total_norm()
        return {
            "total": ranks.combine(total[None], total.new_zeros(0))[0],
            "norms": backend.norms(grads),
            "dots": backend.dots(grads, parts),
            "cosines": turn,
            "rows": rows,
            "flat": [ranks.whole(x, p).clone() for x, p in zip(flat, parameters, strict=True)],
        }

    return check


def spoiled(wrap: Callable[[Net], Any], factor: float) -> Callable[[Path], dict[str, Any]]:
    """A loss that is not finite, or far too large, on the last rank alone."""

    def check(folder: Path) -> dict[str, Any]:
        loop = Loop(wrap)
        loop.train(SPOILED)
        before, averages = loop.state(), [loop.averages()]
        record = loop.step(spoil=factor if ranks.rank() == ranks.size() - 1 else 0.0)
        after = loop.state()
        same = all(torch.equal(before[k], after[k]) for k in before)
        averages.append(loop.averages())
        found = outcome(loop, [record, *loop.train(3)])
        return {"same": same, "averages": averages, **found}

    return check


def saved_inside(wrap: Callable[[Net], Any]) -> Callable[[Path], dict[str, bool]]:
    """Whether a save inside a full step gets base weights, and the forward pass the forecast."""

    def check(folder: Path) -> dict[str, bool]:
        loop = Loop(wrap)
        loop.train(SPOILED)
        base = loop.weights()
        with torch.no_grad():
            loop.loss()  # leaves whole copies behind
        loop.engine.before_step()
        options = StateDictOptions(full_state_dict=True)
        saved = get_model_state_dict(loop.model, options=options)
        net = build()
        moved = loop.weights()
        net.load_state_dict(moved)
        x = batch(99)
        with torch.no_grad():
            seen, expected = loop.model(x), net(x)
        loop.engine.detach()
        return {
            "moved": not torch.equal(moved["middle.weight"], base["middle.weight"]),
            "saves base weights": all(torch.equal(saved[k], base[k]) for k in saved),
            "sees the forecast": torch.allclose(seen, expected, atol=1e-6),
            "ends at base weights": all(torch.equal(v, base[k]) for k, v in loop.weights().items()),
        }

    return check


def refused(folder: Path) -> dict[str, str]:
    """What set-ups that cannot work are told, on this rank."""

    class DeepSpeedEngine(nn.Linear):
        pass

    def both(net: Net) -> Net:
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(net, mesh["tensor"], {"first": ColwiseParallel()})
        return fully_shard(net, mesh=mesh["data"])

    def fsdp1(net: Net) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(net, device_id=torch.device("cpu"))

    told = {}
    setups: dict[str, tuple[Callable[[Net], Any], dict[str, Any]]] = {
        "fsdp1": (fsdp1, {}),
        "deepspeed": (lambda net: DeepSpeedEngine(2, 2), {}),
        "fully_shard over tensor parallelism": (both, {}),
        "another configuration": (ddp(), {"speedup": 1.5 + ranks.rank()}),
    }
    for name, (wrap, changes) in setups.items():
        try:
            Loop(wrap, make_config(**changes))
            told[name] = ""
        except UnsupportedSetupError as error:
            told[name] = str(error)
    return told


def logged(folder: Path) -> dict[str, Any]:
    """What is logged when forecasts do not pay and the engine hands over."""
    # Far forecasts of the head raise any loss; those of hidden layers only saturate.
    far = {"predictors": {"head": SpectralPredictor()}, "horizon": FixedHorizon(updates=1e4)}
    config = make_config(loss_tolerance=0.0, loss_check_every=1, patience=12, **far)
    with Log() as log:
        loop = Loop(ddp(), config)
        records = loop.train()
    return {"heard": log.lines, **outcome(loop, records)}


CHECKS: dict[str, Callable[[Path], Any]] = {
    "ddp": trained(ddp()),
    "ddp, static graph": trained(ddp(static_graph=True)),
    "ddp, unused parameters": trained(
        ddp(find_unused_parameters=True), skips=lambda step: step % 3 == 2
    ),
    "ddp, accumulation": trained(ddp(), window=2),
    "fsdp2": trained(sharded),
    "tensor parallelism": trained(tensor_parallel, shared=True),
    "ddp, shadow": trained(ddp(), make_config(shadow=True)),
    "fsdp2, shadow": trained(sharded, make_config(shadow=True)),
    "ddp, late": trained(ddp(), make_config(lag=3)),
    "fsdp2, bfloat16": trained(sharded, make_config(history_dtype="bfloat16")),
    "fsdp2, long": trained(sharded, make_config(**LONG)),
    "ddp, measured": measured(ddp()),
    "fsdp2, measured": measured(sharded),
    "tensor parallelism, measured": measured(tensor_parallel, shared=True),
    "ddp, reductions": reductions(ddp()),
    "fsdp2, reductions": reductions(sharded),
    "ddp, spoiled loss": spoiled(ddp(), float("nan")),
    "fsdp2, spoiled loss": spoiled(sharded, float("inf")),
    "ddp, spiked loss": spoiled(ddp(), 1e4),
    "fsdp2, spiked loss": spoiled(sharded, 1e4),
    "ddp, saved inside": saved_inside(ddp()),
    "fsdp2, saved inside": saved_inside(sharded),
    "refused": refused,
    "logged": logged,
}
