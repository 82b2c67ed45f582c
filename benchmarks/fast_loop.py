"""Time of a full step with the usual means to make it fast, with and without the plug-in.

Run with: python -m benchmarks.fast_loop [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import RESULTS
from benchmarks.measure import Loop, milliseconds, ratio, take_turns, waits
from hybrid_predict import MomentumPredictor
from hybrid_predict.runs.runtime import environment, write_json

PLUGIN: dict[str, Any] = {"predictors": {"hidden": MomentumPredictor(gated=False)}}
"""Arguments that make predicted steps without waiting for skill, at the default speedup."""


ON_CPU = ("bf16", "compiled", "fused", "channels_last")
"""Means to make a full step fast that matter without a CUDA device."""

Way = tuple[str, ...]


def ways(device: str) -> dict[str, Way]:
    """Return the ways to measure on a device: with no means, with each alone, with all."""
    names = ON_CPU if device == "cpu" else (*ON_CPU, "pinned", "unread")
    return {"none": (), **{name: (name,) for name in names}, "together": names}


@dataclass(frozen=True)
class Size:
    """Channels, residual blocks, images of 3 x 32 x 32 per batch, and backend of the compiler."""

    width: int = 48
    blocks: int = 3
    batch: int = 64
    compiler: str = "inductor"


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape and dtype."""
        return torch.relu(x + self.body(x))


def network(size: Size) -> nn.Module:
    """Return a residual network with ten classes."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, size.width, 3, stride=2, padding=1), nn.ReLU())
    blocks = [Block(size.width) for _ in range(size.blocks)]
    end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size.width, 10))
    return nn.Sequential(stem, *blocks, end)


class ImageLoop(Loop):
    """A training loop on random images."""

    def __init__(self, way: Way, plugin: bool, device: str, size: Size) -> None:
        net = network(size).to(device)
        layout = torch.channels_last if "channels_last" in way else torch.contiguous_format
        net = net.to(memory_format=layout)  # type: ignore[call-overload]
        images = torch.randn(8, size.batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        self.images = [x.to(memory_format=layout) for x in images]
        self.labels = torch.arange(size.batch) % 10
        if "pinned" in way:
            self.images = [x.pin_memory() for x in self.images]
            self.labels = self.labels.pin_memory()
        self.optimizer = torch.optim.AdamW(
            net.parameters(), lr=1e-3, fused=("fused" in way) or None
        )
        super().__init__(net, self.optimizer, PLUGIN if plugin else None, torch.device(device))
        compiled = "compiled" in way and torch.compile(net, backend=size.compiler)
        self.model: Callable[[Tensor], Tensor] = compiled or net
        self.way, self.taken = way, 0

    def full_step(self) -> Tensor:
        """Take one full step; return its loss."""
        x, y = self.images[self.taken % len(self.images)], self.labels
        x, y = (t.to(self.device, non_blocking="pinned" in self.way) for t in (x, y))
        with torch.autocast(self.device.type, torch.bfloat16, enabled="bf16" in self.way):
            loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if "unread" not in self.way:
            loss.item()
        self.taken += 1
        return loss


def measure(
    device: str = "cpu", size: Size | None = None, blocks: int = 9, length: int = 6
) -> dict[str, Any]:
    """Compare full steps of every way, with and without the plug-in.

    ``speed`` is the time over that of ``none``, ``ratio`` that with the plug-in over that without,
    ``held`` full and predicted steps, ``waits`` torch's message on the first synchronisation.
    """
    size = size or Size()
    if device == "cuda":
        blocks, length = 3 * blocks, 4 * length
    loops = {
        f"{name}{plugin * ' with the plug-in'}": ImageLoop(way, plugin, device, size)
        for name, way in ways(device).items()
        for plugin in (False, True)
    }
    rounds = take_turns(loops, blocks, length)
    rows = []
    for name, way in ways(device).items():
        hybrid = loops[f"{name} with the plug-in"]
        assert hybrid.engine is not None
        ledger = hybrid.engine.ledger
        row: dict[str, Any] = {
            "way": name,
            "plain_ms": milliseconds(rounds, name, length),
            "speed": statistics.median(r[name] / r["none"] for r in rounds),
            **ratio(rounds, f"{name} with the plug-in", name),
            "held": [ledger.full_steps, ledger.predicted_steps],
        }
        if device == "cuda" and "unread" in way:
            row["waits"] = waits(hybrid.step, length)
        rows.append(row)
        hybrid.close()
    return {"size": vars(size), "blocks": blocks, "length": length, "rows": rows}


def main() -> None:
    """Measure on one device; the results file keeps those of the other."""
    parser = argparse.ArgumentParser("python -m benchmarks.fast_loop", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "fast_loop.json", help="results file"
    )
    asked = parser.parse_args()
    results = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    torch.set_num_threads(1)
    size = Size(width=256, batch=1024) if asked.device == "cuda" else Size()
    measured = measure(asked.device, size)
    results[asked.device] = {"environment": environment(), **measured}
    write_json(results, asked.output)


if __name__ == "__main__":
    main()
