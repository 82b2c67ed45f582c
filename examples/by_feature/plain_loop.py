"""A plain torch loop with gradient accumulation, saved halfway and resumed bit for bit.

Look at: before_step and after_step around a full step, and record.ticks, the number of times to
step the scheduler. The engine's state is saved together with those of model and optimizer.

Run with: python examples/by_feature/plain_loop.py (about 5 seconds on one core)
"""

from __future__ import annotations

import io

import torch
from torch import nn
from torch.nn import functional as F

from hybrid_predict import HybridConfig, HybridEngine

TOTAL_STEPS, MICRO_BATCHES = 300, 2


class Run:
    """Model, optimizer, schedule and engine, saved and loaded together."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, TOTAL_STEPS)
        config = HybridConfig(speedup=1.5, total_steps=TOTAL_STEPS)
        self.engine = HybridEngine(self.model, self.optimizer, config)
        self.generator = torch.Generator().manual_seed(1)

    def step(self) -> float:
        self.engine.before_step()
        total = torch.zeros(())
        for _ in range(MICRO_BATCHES):
            x = torch.randn(32, 8, generator=self.generator)
            loss = F.mse_loss(self.model(x), x.sum(1, keepdim=True).sin()) / MICRO_BATCHES
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        self.optimizer.zero_grad()
        record = self.engine.after_step(total)
        for _ in range(record.ticks):
            self.scheduler.step()
        return float(total)

    def parts(self) -> dict[str, object]:
        return {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler,
            "engine": self.engine,
        }  # fmt: skip

    def save(self) -> bytes:
        state = {name: part.state_dict() for name, part in self.parts().items()}  # type: ignore[attr-defined]
        file = io.BytesIO()
        torch.save({**state, "generator": self.generator.get_state()}, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.generator.set_state(state.pop("generator"))
        for name, part in self.parts().items():
            part.load_state_dict(state[name])  # type: ignore[attr-defined]


def main() -> tuple[Run, Run]:
    first, saved = Run(), b""
    while not first.engine.done:
        loss = first.step()
        if first.engine.ledger.full_steps == 100:
            saved = first.save()
    resumed = Run()
    resumed.load(saved)
    while not resumed.engine.done:
        resumed.step()
    ledger = first.engine.ledger
    print(
        f"{ledger.full_steps} full steps and {ledger.predicted_steps} predicted steps are "
        f"{ledger.steps} steps, {loss=:.4f}"
    )
    pairs = zip(first.model.parameters(), resumed.model.parameters(), strict=True)
    print("resumed run identical:", all(torch.equal(a, b) for a, b in pairs))
    return first, resumed


if __name__ == "__main__":
    main()
