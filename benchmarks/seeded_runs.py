"""Short seeded runs of any state of the package: what they end with, written to a folder.

Only public names of the package are used, so that any state of the code can be run. It is run by
:mod:`benchmarks.same` with a folder as its argument.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
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
        """Return the logits of the next tokens."""
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
    model = nn.parallel.DistributedDataParallel(net) if rank >= 0 and _ranks() > 1 else net
    make = optimizer or partial(torch.optim.AdamW, lr=3e-3)
    parts = [list(net.parameters())]
    if optimizers == 2:
        parts = [list(net.first.parameters()), [p for n, p in net.named_parameters()
                                                if not n.startswith("first")]]  # fmt: skip
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
    return {"weights": [p.detach().clone() for p in net.parameters()], "losses": losses,
            "records": records}  # fmt: skip


def trainer(**config: Any) -> dict[str, Any]:
    """Train in a Lightning Trainer."""
    import lightning as L

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
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule,
                                                             "interval": "step"}}  # fmt: skip

    L.seed_everything(0, verbose=False)
    module = Module()
    data: Any = torch.randint(16, (160, 9), generator=torch.Generator().manual_seed(1))
    loader: Any = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    callback = HybridPredict(max_overhead=1e9, log_dir=None, **config)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
             "enable_model_summary": False, "accelerator": "cpu"}  # fmt: skip
    L.Trainer(max_epochs=6, callbacks=[callback], **quiet).fit(module, loader)  # type: ignore[arg-type]
    ledger = callback.ledger
    return {"weights": [p.detach().clone() for p in module.parameters()], "losses": module.losses,
            "records": [ledger.full_steps, ledger.steps, ledger.undone_steps]}  # fmt: skip


def _ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _on_rank(rank: int, folder: str, config: dict[str, Any]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.save(own_loop(rank=rank, **config), Path(folder) / f"rank {rank}.pt")
    torch.distributed.destroy_process_group()


def ranks(**config: Any) -> dict[str, Any]:
    """Train on two ranks; return what the second one ends with."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        mp.spawn(  # type: ignore[attr-defined]
            _on_rank, (folder, config), nprocs=2
        )
        found: dict[str, Any] = torch.load(Path(folder) / "rank 1.pt", weights_only=False)
    return found


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


def results() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each run, and what it has ended with."""
    torch.set_num_threads(1)
    for name, run in RUNS.items():
        yield name, run()


if __name__ == "__main__":
    for name, found in results():
        torch.save(found, Path(sys.argv[1]) / f"{name}.pt")
