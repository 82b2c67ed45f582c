"""What the tests of audits train."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_models import Net, loader

from hybrid_predict import MomentumPredictor
from hybrid_predict.audit import AuditConfig, Observer

STEPS = 18

UNGATED = {"hidden": MomentumPredictor(gated=False)}
"""Predicted steps whatever their skill, which short runs have no time to show."""


def kept(folder: Path) -> list[dict[str, Any]]:
    """The finished arms that a folder holds."""
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def keep(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Let a folder hold these finished arms."""
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "runs.jsonl").write_text(text)


class Task:
    """Counts its calls, and what the arms were given."""

    def __init__(self, model: type[Net] = Net, **options: Any) -> None:
        self.model = model
        self.options = {"max_steps": STEPS, "accelerator": "cpu", "log_every_n_steps": 4, **options}
        self.calls: list[tuple[str, int]] = []
        self.first_weights: list[float] = []
        self.orders: list[list[float]] = []

    def __call__(self, arm: Any) -> Any:
        self.calls.append((arm.name, arm.seed))
        model = self.model()
        self.first_weights.append(float(model.net[0].weight.detach().sum()))
        self.orders.append([random.random(), float(np.random.rand()), float(torch.rand(()))])
        return arm.trainer(**self.options), model, (loader(), loader(2))


def config(**options: Any) -> AuditConfig:
    return AuditConfig(
        **{"mlflow": False, "seeds": 2, "hybrid": {"predictors": UNGATED}, **options}
    )


class Interrupting(Observer):
    """Presses Ctrl-C in the second run."""

    started = 0

    def run_started(self, arm: str, seed: int, steps: int) -> None:
        self.started += 1

    def stepped(self, steps: int) -> None:
        if self.started == 2:
            raise KeyboardInterrupt
