"""Runs on data that a model overfits, with and without the guard that reads their validations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.digests import code_digest
from benchmarks.plan import Cell, Plan, Row, Selection, check_chosen
from benchmarks.tasks import Recipe, Task
from benchmarks.tasks.base import Batch, drawn, perceptron
from benchmarks.tasks.language import ByteGPTTask
from benchmarks.tasks.texts import Text
from benchmarks.train import Run
from benchmarks.views import view

ARMS = ("plain", "corrected-N", "hybrid", "auto")
"""All of as many steps; ``corrected-N`` is the plug-in with speedup=1."""

GUARDS = ("pause", "ignore")
VALIDATIONS = 40
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class FewRows(Task):
    """Classify the rows of a small table with a net that can learn all of them by heart."""

    metric = "validation loss (nats per row)"

    steps: int = 800
    table: str = "digits"
    rows: int = 300  #: for training; the others are held out
    wrong: float = 0.0  #: share of the training labels that are drawn anew
    batch_size: int = 100

    def data(self) -> tuple[Batch, Batch]:
        """Return the rows for training and those held out."""
        return _rows(self.table, self.rows, self.wrong)

    def net(self) -> nn.Module:
        (inputs, labels), _ = self.data()
        return nn.Sequential(*perceptron(inputs.shape[1], 64, 64, 64, int(labels.max()) + 1))

    def batches(self, seed: int) -> Iterator[Batch]:
        return drawn(self.data()[0], self.batch_size, seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(model(inputs), labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        return float(self.loss(model, self.data()[1]))


@lru_cache(maxsize=4)
def _rows(table: str, count: int, wrong: float) -> tuple[Batch, Batch]:
    from sklearn import datasets  # type: ignore[import-untyped]

    columns, labels = getattr(datasets, f"load_{table}")(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    inputs = torch.tensor(columns, dtype=torch.float32)[order]
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-6)
    targets = torch.tensor(labels).long()[order]
    shown = targets[:count].clone()
    lost = torch.rand(count, generator=generator) < wrong
    drawn_anew = torch.randint(int(targets.max()) + 1, (count,), generator=generator)
    shown[lost] = drawn_anew[lost]
    return (inputs[:count], shown), (inputs[count:], targets[count:])


@dataclass(frozen=True, kw_only=True)
class FewBytes(ByteGPTTask):
    """A small GPT on the first bytes of the source text."""

    steps: int = 800
    layers: int = 2
    heads: int = 4
    width: int = 64
    context: int = 32
    batch_size: int = 32
    validation_batches: int = 8
    size: int = 12_000  #: bytes

    def data(self) -> Text:
        text = super().data()
        return replace(text, train=text.train[: self.size])


_RECIPE = Recipe(rates=(3e-3,), learning_rate=3e-3, schedule="cosine")

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        FewRows(name="few-digits", title="300 digits", recipe=_RECIPE),
        FewRows(
            name="wrong-digits", title="600 digits, a fifth with any label", recipe=_RECIPE,
            rows=600, wrong=0.2,
        ),
        FewRows(
            name="cancer", title="280 rows of breast cancer", recipe=_RECIPE, table="breast_cancer",
            rows=280, batch_size=32,
        ),
        FewBytes(name="few-bytes", title="12 kB of text, GPT", recipe=_RECIPE),
    )
}  # fmt: skip


class Key(NamedTuple):
    """A run: ``guard`` is the value of ``on_overfit``, empty without the plug-in."""

    task: str
    arm: str
    guard: str
    seed: int


class OverfittingPlan(Plan[Key]):
    """All tasks, arms and guards, seed by seed."""

    def __init__(self, chosen: Selection) -> None:
        check_chosen("tasks", chosen.tasks, TASKS)
        check_chosen("arms", chosen.arms, ARMS)
        self._chosen = chosen

    def keys(self, done: Mapping[Key, Row]) -> Iterator[Key]:
        for seed in range(self._chosen.seeds or SEEDS):
            for task in self._chosen.tasks or TASKS:
                for arm in self._chosen.arms or ARMS:
                    for guard in GUARDS if arm != "plain" else ("",):
                        yield Key(task, arm, guard, seed)

    def key(self, row: Row) -> Key:
        return Key(*(row[name] for name in Key._fields))

    def work(self, key: Key) -> Row:
        torch.set_num_threads(1)
        return {**key._asdict(), **_trained(key), "code": code_digest()}

    def tell(self, row: Row) -> str:
        return (
            f"{' '.join(map(str, self.key(row)))}: best {row['best']:.3f}, last {row['last']:.3f}"
        )

    def holds(self, row: Row) -> bool:
        return not row["guard"] or bool(row["code"] == code_digest())


def _trained(key: Key) -> dict[str, Any]:
    """Train a run, with a validation after every fortieth of its steps."""
    task = TASKS[key.task]
    rate = task.recipe.learning_rate
    cell = Cell(key.task, "few", key.arm, key.seed, rate, 1.0, True, task.steps, "")
    run = Run(cell, task, on_overfit=key.guard or "ignore")
    every = task.steps // VALIDATIONS
    curve: list[tuple[float, int, int]] = []
    while not run.done:
        run.step()
        steps = run.engine.ledger.steps if run.engine else run.full_steps
        if steps >= every * (len(curve) + 1):
            value = task.final_loss(run.model)
            curve.append((value, steps, run.full_steps))
            if run.engine:
                run.engine.observe_validation(value)
    if run.engine:
        run.engine.detach()
    best, step, full = min(curve)
    counts = {"best": best, "best_step": step, "best_full": full, "full_steps": run.full_steps}
    return {**counts, "last": task.final_loss(run.model)}


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return the table of the page."""
    return {"overfitting": lambda: view(_lines(rows))}


def _lines(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for name, task in TASKS.items():
        for arm in ARMS:
            for guard in ("", *GUARDS):
                chosen = (name, arm, guard)
                runs = [r for r in rows if (r["task"], r["arm"], r["guard"]) == chosen]
                if not runs:
                    continue

                def mean(field: str, places: int, runs: Sequence[Row] = runs) -> str:
                    return f"{fmean(run[field] for run in runs):,.{places}f}"

                yield {
                    "task": task.title,
                    "arm": arm,
                    "`on_overfit`": guard or "n/a",
                    "full steps": mean("full_steps", 0),
                    "last": mean("last", 3),
                    "best": mean("best", 3),
                    "after step": mean("best_step", 0),
                    "after full steps": mean("best_full", 0),
                    "seeds": str(len(runs)),
                }
