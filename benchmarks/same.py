"""Compares short seeded runs at a commit and in the working tree, bit for bit.

Processors round differently, so both are run on this machine, and no digests are committed. The
runs use only public names of the package, so that any state of the code can be run.

Run with: python -m benchmarks.same COMMIT
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from hybrid_predict import HybridConfig, HybridEngine

STEPS = 120

Make = Callable[[Any], torch.optim.Optimizer]


class Net(nn.Module):
    """An embedding, two hidden matrices and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 12)
        self.first, self.second = nn.Linear(12, 24), nn.Linear(24, 12)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + self.second(torch.tanh(self.first(x)))))


def own_loop(
    optimizer: Make | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    spoiled: tuple[int, ...] = (),
    cut: int | None = None,
    optimizers: int = 1,
    rank: int = 0,
    **config: Any,
) -> dict[str, Any]:
    """Train in a loop of one's own; with ``cut``, by two engines, the second one from a state."""
    torch.manual_seed(0)
    net = Net().to(dtype)
    several = torch.distributed.is_initialized()
    model = nn.parallel.DistributedDataParallel(net) if several else net
    make = optimizer or partial(torch.optim.AdamW, lr=3e-3)
    parameters = list(net.parameters())
    parts = [parameters] if optimizers == 1 else [parameters[:3], parameters[3:]]
    updating = [make(part) for part in parts]
    settings = HybridConfig(**{"total_steps": STEPS, "max_overhead": 1e9, **config})
    engine = HybridEngine(model, updating, settings)
    losses: list[float] = []
    records: list[Any] = []
    generator = torch.Generator().manual_seed(1 + rank)
    while not engine.done:
        if len(records) == cut:
            state = engine.state_dict()
            engine.detach()
            engine = HybridEngine(model, updating, settings)
            engine.load_state_dict(state)
        engine.before_step()
        tokens = torch.randint(16, (8, 9), generator=generator)
        logits = model(tokens[:, :-1]).float().flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        if len(records) in spoiled:
            next(net.parameters()).grad.fill_(math.nan)  # type: ignore[union-attr]
        for each in updating:
            each.step()
            each.zero_grad()
        record = engine.after_step(loss)
        losses.append(loss.item())
        records.append((record.phase.value, record.ticks, record.predicted, str(record.verdict)))
    engine.detach()
    weights = [p.detach().clone() for p in parameters]
    return {"weights": weights, "losses": losses, "records": records}


def trainer(**config: Any) -> dict[str, Any]:
    """Train in a Lightning Trainer."""
    import lightning as L

    from benchmarks.clients import QUIET
    from hybrid_predict import HybridPredict

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.losses: list[float] = []

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            logits = self.net(batch[:, :-1]).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    L.seed_everything(0, verbose=False)
    module = Module()
    data: Any = torch.randint(16, (160, 9), generator=torch.Generator().manual_seed(1))
    loader: Any = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    callback = HybridPredict(max_overhead=1e9, log_dir=None, **config)
    options: Any = {"callbacks": [callback], "enable_checkpointing": False, **QUIET}
    L.Trainer(max_epochs=6, **options).fit(module, loader)
    weights = [p.detach().clone() for p in module.parameters()]
    ledger = callback.ledger
    records = [ledger.full_steps, ledger.steps, ledger.undone_steps]
    return {"weights": weights, "losses": module.losses, "records": records}


def _on_rank(rank: int, folder: str, config: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(own_loop(rank=rank, **config), Path(folder) / f"rank {rank}.pt")
    torch.distributed.destroy_process_group()


def ranks(**config: Any) -> dict[str, Any]:
    """Train on two ranks; return what the second one ends with."""
    with TemporaryDirectory() as folder:
        mp.spawn(_on_rank, (folder, config), nprocs=2)  # type: ignore[attr-defined]
        return torch.load(Path(folder) / "rank 1.pt", weights_only=False)


OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": partial(torch.optim.Adam, lr=3e-3, weight_decay=1e-3),
    "AdamW, fused": partial(torch.optim.AdamW, lr=3e-3, fused=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3),
}

RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"{speedup}": partial(own_loop, speedup=speedup) for speedup in (1, 1.5, 3, "auto")},
    **{name: partial(own_loop, make, speedup=1.5) for name, make in OPTIMIZERS.items()},
    "bfloat16": partial(own_loop, dtype=torch.bfloat16, speedup=1.5),
    "float64": partial(own_loop, dtype=torch.float64, speedup=1.5),
    "averages in bfloat16": partial(own_loop, speedup=1.5, history_dtype="bfloat16"),
    "momentum predictor": partial(own_loop, predictors={"hidden": "momentum"}),
    "predicted only": partial(own_loop, updates={}, speedup=1.5),
    "small rate": partial(own_loop, partial(torch.optim.AdamW, lr=1e-5), speedup="auto"),
    "disabled": partial(own_loop, enabled=False),
    "shadow": partial(own_loop, shadow=True),
    "kinds": partial(own_loop, kinds={"second.*": "head"}),
    "two optimizers": partial(own_loop, optimizers=2, speedup=1.5),
    "gradients that are not finite": partial(own_loop, speedup=1.5, spoiled=(70, 71, 90)),
    "resumed": partial(own_loop, speedup=1.5, cut=57),
    "resumed with auto": partial(own_loop, speedup="auto", cut=57),
    "Trainer": partial(trainer, speedup=1.5),
    "Trainer with auto": partial(trainer, speedup="auto"),
    "two ranks": partial(ranks, speedup=1.5),
}


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe how two runs differ; empty if they have the same bits."""
    runs = (before, now)
    weights = [torch.cat([w.flatten() for w in run["weights"]]).nan_to_num() for run in runs]
    losses = [torch.tensor(run["losses"]).nan_to_num() for run in runs]
    if torch.equal(*weights) and torch.equal(*losses) and before["records"] == now["records"]:
        return ""
    steps = zip(before["records"], now["records"], strict=False)
    first = next((k for k, (a, b) in enumerate(steps, 1) if a != b), None)
    old, new = (each.double() for each in weights)
    text = f"weights differ by {float((old - new).norm() / old.norm()):.1e} of their length"
    return text if first is None else f"{text}; records from the {first}. on"


def main() -> int:
    """Compare all runs; return 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", help="state to compare the working tree with")
    parser.add_argument("--into", type=Path, help="make the runs, and write them to a folder")
    options = parser.parse_args()
    if options.into:
        torch.set_num_threads(1)
        for name, make in RUNS.items():
            torch.save(make(), options.into / f"{name}.pt")
        return 0
    from benchmarks.house import ROOT, checkout, run_python

    with TemporaryDirectory() as folder, checkout(ROOT, options.commit) as before:
        places = Path(folder) / "before", Path(folder) / "now"
        for root, place in zip((before, ROOT), places, strict=True):
            place.mkdir()
            run_python(root, __file__, "--into", str(place))
        found = {
            path.stem: difference(*(torch.load(p / path.name, weights_only=False) for p in places))
            for path in sorted(places[1].glob("*.pt"))
        }
    for name, text in found.items():
        print(f"{name}: {text or 'the same bits'}")
    return int(any(found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
