"""Protocols of published forecasts of weights: constant rates, and the first hit of a loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from benchmarks.plan import Row
from benchmarks.tasks import TASKS, Task
from benchmarks.tasks.schedules import constant_schedule, linear_schedule
from benchmarks.train import Training
from benchmarks.yardsticks.study import Study
from hybrid_predict import HybridConfig

FILE = "published.jsonl"
STEPS, EVERY, SETTLED = 2000, 20, 10
"""Steps of a run, full steps between evaluations, and evaluations whose mean is the target."""

AVERAGE = 0.99
"""Decay of the average of weights that is read out in one arm."""


@dataclass(frozen=True)
class Protocol:
    """A published constant learning rate of AdamW, and the saving that its authors report.

    ``task`` is the task of the benchmark whose net and data take the place of theirs.
    """

    source: str
    saving: str
    rate: float
    task: str = "cnn"
    decay: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=lambda: {"batch_size": 128})


PROTOCOLS: Mapping[str, Protocol] = {
    "nino": Protocol("NiNo (Knyazev et al., ICLR 2025), AdamW at 6e-3", "up to 50 %", 6e-3),
    "wnn": Protocol("weight nowcaster (Jang et al., ICML 2023), Adam at 1e-3", "no number", 1e-3),
    "nino-lm": Protocol(
        "NiNo's language model 3-64, AdamW at 2e-4", "up to 50 %", 2e-4, "gpt-0.2m", 0.01,
        {"heads": 4, "validation_batches": 4},
    ),
}  # fmt: skip
"""Protocols by name.

The first two train a net of 3x3 convolutions with 16, 32 and 32 channels, the third a GPT of 3
layers and width 64.
"""


class Arm(NamedTuple):
    """A way to train for a ``share`` of the protocol's length; only one of them ``decays``."""

    options: dict[str, Any] | None = None
    averaged: bool = False
    share: float = 1.0
    decays: bool = False


ARMS: Mapping[str, Arm] = {
    "plain": Arm(),
    "plain, averaged weights": Arm(averaged=True),
    "plain, a quarter of the steps, linear decay": Arm(share=0.25, decays=True),
    "corrected": Arm({"speedup": 1}),
    "hybrid (default)": Arm({}),
    "auto": Arm({"speedup": "auto"}),
}

Key = tuple[str, str, int]


def task(protocol: Protocol) -> Task:
    """Return the task of a protocol with its settings."""
    base = TASKS[protocol.task]
    recipe = replace(
        base.recipe, betas=(0.9, 0.999), weight_decay=protocol.decay, gradient_clip=None
    )
    return replace(base, steps=STEPS, recipe=recipe, **protocol.fields)


def measure(key: Key) -> dict[str, Any]:
    """Train once, and return full steps and losses of all evaluations."""
    name, title, seed = key
    chosen, arm = task(PROTOCOLS[name]), ARMS[title]
    total = round(STEPS * arm.share)
    model, batches = chosen.model(seed), chosen.batches(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PROTOCOLS[name].rate, betas=chosen.recipe.betas,
        weight_decay=PROTOCOLS[name].decay,
    )  # fmt: skip
    config = None if arm.options is None else HybridConfig(total_steps=total, **arm.options)
    factor = linear_schedule(total, 0.0) if arm.decays else constant_schedule(total, 0.0)
    run = Training(model, [optimizer], [factor], config, total)
    average = deepcopy(model)
    shown = average if arm.averaged else model
    steps, losses = [], []
    while not run.done:
        run.step(lambda: chosen.full_step(model, next(batches), optimizer))
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 1.0 - min(AVERAGE, 1.0 - 1.0 / run.full_steps))
        if run.full_steps % EVERY == 0 or run.done:
            steps.append(run.full_steps)
            losses.append(chosen.final_loss(shown))
    run.close()
    return {
        "protocol": name, "arm": title, "seed": seed, **run.counts(), "steps": steps,
        "losses": losses,
    }  # fmt: skip


def key_of(row: Row) -> Key:
    """Return the key of a row."""
    return row["protocol"], row["arm"], row["seed"]


def keys(seeds: int) -> Iterator[Key]:
    """Return all runs, seed by seed."""
    for seed in range(seeds):
        for name in PROTOCOLS:
            for arm in ARMS:
                yield name, arm, seed


def tell(row: Row) -> None:
    """Print a line on a finished run."""
    print(*key_of(row), f"loss {row['losses'][-1]:.4f}", flush=True)


SMALL = Study("small", FILE, key_of, keys, measure, tell)
