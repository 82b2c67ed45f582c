"""Prototypes of decision 32: scales of rows and columns, shares, averages and lengths.

``python -m benchmarks.decisions.scales_0032 NAME... --tasks TASK... --seeds SEED...`` trains
corrected updates alone for T / 1.5 full steps at the tuned rates of plain training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import RESULTS, arms, train
from benchmarks.plan import as_cell
from benchmarks.run import start_worker
from benchmarks.tasks import FRESH, TASKS
from benchmarks.tasks.photograph import load_photograph
from hybrid_predict import HybridConfig, SpectralUpdate, WhitenedUpdate
from hybrid_predict.rules.budget import as_matrix
from hybrid_predict.torch.matrices import _levelled, lengths, orthogonal
from hybrid_predict.updates.base import UpdateState


@dataclass(frozen=True, kw_only=True)
class Scaled(SpectralUpdate):
    """Scales of rows and columns from a source, before and after the orthogonal factor."""

    source: str | None = "blend"  # blend, gradient, innovation; None for no scales
    level: bool = True
    after: bool = True
    rows: bool = True
    power: float = 0.5
    most: float = 2.0
    fade: bool = False

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        matrices: list[Tensor],
        gradients: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return the directions, one matrix at a time."""
        pairs = zip(members, matrices, gradients, strict=True)
        return [self._one(state, *each) for each in pairs]

    def _one(self, state: UpdateState, k: int, matrix: Tensor, gradient: Tensor) -> Tensor:
        x, g = (y.reshape(as_matrix(y.shape)).float() for y in (matrix, gradient))
        scales = [torch.ones(n) for n in x.shape]
        if self.source is not None:
            seen = {"blend": x, "gradient": g, "innovation": g - x}[self.source]
            squares = (seen / lengths(seen[None])[0]).square()
            energies = state.arrays["energies"][k]
            energies.lerp_(torch.cat((squares.sum(1), squares.sum(0))), 0.05)
            power = self.power
            if self.fade:
                cosine = float(torch.cosine_similarity(x.flatten(), g.flatten(), dim=0))
                power *= min(1.0, max(0.0, 1.0 + cosine))
            sides = energies.split(x.shape)
            scales = [
                (s / s.mean()).pow(power).clamp(1 / self.most, self.most).rsqrt() for s in sides
            ]
            scales[0] = scales[0] if self.rows else torch.ones(len(x))
        x = scales[0][:, None] * x * scales[1]
        factor = orthogonal(x[None], self.iterations, state.block).contiguous()
        if self.level:
            factor = -_levelled(factor, [state.arrays["levels"][k]])
        if self.after:
            factor = scales[0][:, None] * factor * scales[1]
        return (-factor / lengths(factor)).reshape(matrix.shape)


NONE = Scaled(source=None)
PROTOTYPES: dict[str, dict[str, Any]] = {
    "plain": {"updates": {}},
    **{
        name: {"updates": {"hidden": update}}
        for name, update in {
            "levelled rows (the default before)": NONE,
            "blend": Scaled(),
            "innovation": Scaled(source="innovation"),
            "innovation, fading": Scaled(source="innovation", fade=True),
            "innovation, rows not levelled": Scaled(source="innovation", level=False),
            "innovation, before the factor only": Scaled(source="innovation", after=False),
            "innovation, fading, range 4": Scaled(source="innovation", fade=True, most=4.0),
            "innovation, fading, range 4, twice the power": Scaled(
                source="innovation", fade=True, most=4.0, power=1.0
            ),
            "gradient, fading": Scaled(source="gradient", fade=True),
            "gradient, fading, columns only": Scaled(source="gradient", fade=True, rows=False),
            "gradient, rows not levelled": Scaled(source="gradient", fade=True, level=False),
            "innovation, fading, bound 3": Scaled(source="innovation", fade=True, bound=3.0),
            "share .8": replace(NONE, share=0.8),
            "bound 1": replace(NONE, bound=1.0),
            "no newest gradient": replace(NONE, newest=0.0),
            "decay .9": replace(NONE, decay=0.9),
            "decay .98": replace(NONE, decay=0.98),
            "decay .9, no newest gradient": replace(NONE, decay=0.9, newest=0.0),
            "decay .98, no newest gradient": replace(NONE, decay=0.98, newest=0.0),
            "1 polynomial": replace(NONE, iterations=1),
            "2 polynomials": replace(NONE, iterations=2),
            "whitened": WhitenedUpdate(),
        }.items()
    },
}

COORDINATE_NET = "coordinate net at "
"""Prefix of the tasks in full batch; the peak rate follows."""


class _Net(train.Training):
    """The coordinate net of decision 32: half the pixels of a photograph in every step."""

    def __init__(self, plugin: dict[str, Any], rate: float, seed: int, steps: int = 600) -> None:
        image = load_photograph("china.jpg").permute(1, 2, 0)
        sides = [torch.linspace(-1, 1, n) for n in image.shape[1::-1]]
        grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)
        places, colours = (x[::5, ::5].flatten(0, 1) for x in (grid, image))
        generator = torch.Generator().manual_seed(seed)
        half = torch.randperm(len(places), generator=generator)[: len(places) // 2]
        torch.manual_seed(seed)
        waves = places[half] @ (torch.randn(2, 32) * 3 * math.pi)
        self._inputs = torch.cat((waves.sin(), waves.cos()), -1)
        self._colours = colours[half]
        layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
        net = nn.Sequential(*layers, nn.Linear(64, 3))
        optimizer = torch.optim.AdamW(net.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.0)
        config = HybridConfig(speedup=1, total_steps=steps, **plugin)
        super().__init__(net, [optimizer], [partial(_linear, steps=steps)], config, steps)
        self._optimizer = optimizer

    def loss(self) -> Tensor:
        """Return the loss over the pixels that are trained on."""
        return 100.0 * (self.model(self._inputs) - self._colours).square().mean()

    def full_step(self) -> Tensor:
        """Take a full step, with clipped gradients."""
        loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()


def _linear(step: int, steps: int) -> float:
    warm_up = round(0.05 * steps)
    return min((step + 1) / warm_up, (steps - step) / (steps - warm_up))


def _trained(name: str, task: str, seed: int, row: dict[str, Any] | None) -> dict[str, Any]:
    plugin = PROTOTYPES[name]
    if row is None:
        net = _Net(plugin, float(task.removeprefix(COORDINATE_NET)), seed)
        while not net.done:
            net.step(net.full_step)
        with torch.no_grad():
            return {"name": name, "task": task, "seed": seed, "loss": math.log10(net.loss())}
    arms.ARMS["corrected"] = replace(arms.ARMS["corrected"], plugin={"speedup": 1, **plugin})
    known = {**TASKS, **{each.name: each for each in FRESH}}
    found = train.train(as_cell(row), known[task])
    return {"name": name, "task": task, "seed": seed, "loss": found["loss"]}


def committed(setting: str, arm: str = "corrected") -> Iterable[dict[str, Any]]:
    """Return the committed runs of an arm, by default of corrected updates alone."""
    for suite in ("core", "wide", "fresh"):
        runs = json.loads((RESULTS / f"bench-{suite}.json").read_text())["runs"]
        yield from (row for row in runs if (row["setting"], row["arm"]) == (setting, arm))


def main() -> None:
    """Train what is asked for, and append it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=PROTOTYPES)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--output", type=Path, default=Path("scales-0032.jsonl"))
    asked = parser.parse_args()
    places = {(row["task"], row["seed"]): row for row in committed("tuned")}
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=start_worker) as pool:
        jobs = [
            pool.submit(_trained, name, task, seed, places.get((task, seed)))
            for seed in asked.seeds
            for name in asked.names
            for task in asked.tasks
        ]
        for job in as_completed(jobs):
            with asked.output.open("a") as lines:
                lines.write(json.dumps(job.result()) + "\n")


if __name__ == "__main__":
    main()
