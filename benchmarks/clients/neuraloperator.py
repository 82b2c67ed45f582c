"""neuraloperator: a Fourier neural operator for Darcy flow."""

from typing import Any

import numpy as np
import torch
from neuralop import H1Loss, LpLoss, Trainer
from neuralop.models import FNO
from neuralop.training import AdamW
from scipy.fft import idctn  # type: ignore[import-untyped,unused-ignore]
from torch.utils.data import DataLoader

from benchmarks.clients import Callbacks
from benchmarks.clients.kept import Steps

SIDE = 16
TRAINED = 1000
TESTED = 200


def data(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    media = np.stack([medium(rng) for _ in range(TRAINED + TESTED)])
    x = torch.tensor(media, dtype=torch.float32)[:, None]
    y = torch.tensor(np.stack([pressure(a) for a in media]), dtype=torch.float32)[:, None]
    x = (x - x.mean()) / x.std()
    y = y / y.std()
    rows = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    order = torch.Generator().manual_seed(seed)
    train: Any = DataLoader(rows[:TRAINED], 64, shuffle=True, generator=order)  # type: ignore[arg-type]
    return train, DataLoader(rows[TRAINED:], TESTED)  # type: ignore[arg-type]


def train(data: Any, length: int, callbacks: Callbacks) -> Any:
    model = FNO((8, 8), 1, 1, hidden_channels=24, projection_channel_ratio=2)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * length)
    steps = Steps(callbacks, model, optimizer, length * len(data[0]))
    trainer = Trainer(model=model, n_epochs=length)
    trainer.train(
        steps.over(data[0]), {SIDE: data[1]}, optimizer, schedule, training_loss=H1Loss(d=2),
        eval_losses={"l2": LpLoss(d=2)},
    )  # fmt: skip
    return trainer


def quality(trained: Any, data: Any) -> float:
    return float(trained.evaluate({"l2": LpLoss(d=2)}, data[1])["_l2"])


def medium(rng: np.random.Generator) -> Any:
    """Return a permeability of 3 or 12 in each cell, by the sign of a smooth random field."""
    k = np.pi * np.arange(SIDE)
    scale = (k[:, None] ** 2 + k**2 + 9) ** -1
    field = idctn(scale * rng.normal(size=(SIDE, SIDE)), norm="ortho")
    return np.where(field > 0, 12.0, 3.0)


def pressure(medium: Any) -> Any:
    """Return the pressure in each cell under a uniform source, with zero pressure outside."""
    wide = np.pad(medium, 1, mode="edge")
    cells = np.pad(np.arange(SIDE**2).reshape(SIDE, SIDE), 1, constant_values=-1)
    matrix = np.zeros((SIDE**2 + 1,) * 2)
    inner = (slice(1, -1), slice(1, -1))
    rows = cells[inner].ravel()
    for axis in (0, 1):
        for shift in (1, -1):
            beside = np.roll(cells, shift, axis)[inner].ravel()
            flow = 2 / (1 / medium + 1 / np.roll(wide, shift, axis)[inner]).ravel() * SIDE**2
            matrix[rows, beside] -= flow
            matrix[rows, rows] += flow
    return np.linalg.solve(matrix[:-1, :-1], np.ones(SIDE**2)).reshape(SIDE, SIDE)
