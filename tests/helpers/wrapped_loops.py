"""A small run that loops of other packages repeat bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from cases import UNGATED
from torch import Tensor, nn

from hybrid_predict import HybridConfig, HybridEngine

STEPS = 30


def config() -> HybridConfig:
    return HybridConfig(
        total_steps=STEPS, warmup_steps=2, cooldown_steps=1, max_overhead=100.0, predictors=UNGATED
    )


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A seeded model, its optimizer and a schedule over all steps."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def batch(index: int) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(index))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    error = model(x).float() - x.sum(1, keepdim=True).sin()
    return error.square().mean()


def plain_loop(window: int = 1, bf16: bool = False) -> tuple[nn.Module, HybridEngine]:
    """The run in a loop of torch alone."""
    model, optimizer, scheduler = parts()
    at = 0
    with HybridEngine(model, optimizer, config()) as engine:
        while not engine.done:
            engine.before_step()
            for _ in range(window):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, batch(at))
                (loss / window).backward()
                at += 1
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(engine.after_step(loss).ticks):
                scheduler.step()
    assert scheduler.last_epoch == STEPS
    return model, engine
