"""Tasks at the edge: data that a net overfits, few hidden weights, new targets, fine-tuning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Batch, ClassificationTask, Recipe, Task, drawn, perceptron
from benchmarks.tasks.language import ByteGPTTask, LowRankTask
from benchmarks.tasks.texts import Text


@dataclass(frozen=True, kw_only=True)
class NewInputs(Task):
    """A task on normal inputs that are new in every full step."""

    inputs: int
    batch_size: int
    held_out: int

    @abstractmethod
    def answered(self, inputs: Tensor) -> Batch:
        """Return inputs with their targets."""

    def batches(self, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1 + seed)
        while True:
            yield self.answered(torch.randn(self.batch_size, self.inputs, generator=generator))

    def evaluate(self, model: nn.Module) -> float:
        generator = torch.Generator().manual_seed(0)
        held = torch.randn(self.held_out, self.inputs, generator=generator)
        return float(self.loss(model, self.answered(held)))


@dataclass(frozen=True, kw_only=True)
class ManyClasses(NewInputs, ClassificationTask):
    """Classify new normal inputs by a random net; most weights are in the head."""

    metric = "validation loss (nats per row)"

    steps: int = 768
    inputs: int = 16
    width: int = 32
    classes: int = 400
    batch_size: int = 128
    held_out: int = 8192

    def net(self) -> nn.Module:
        layers = perceptron(self.inputs, self.width, self.width, self.classes, activation=nn.GELU)
        return nn.Sequential(*layers)

    def answered(self, inputs: Tensor) -> Batch:
        mix, directions = _rule(self.inputs, self.classes)
        return inputs, ((inputs @ mix).tanh() @ directions).argmax(1)


@lru_cache(maxsize=1)
def _rule(inputs: int, classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(inputs, inputs, generator=generator)
    return mix, torch.randn(inputs, classes, generator=generator)


@dataclass(frozen=True, kw_only=True)
class NewTargets(NewInputs):
    """Learn what a random net computes, after :meth:`go_to` another one."""

    metric = "validation loss (mean squared error)"

    steps: int = 800
    nets: int = 2
    inputs: int = 20
    outputs: int = 10
    batch_size: int = 64
    held_out: int = 4096
    _now: list[int] = field(default_factory=lambda: [0], compare=False)  # number of the net

    def go_to(self, share: float) -> None:
        """Change the net if ``share`` of the run, from 0 to 1, is in another part than before."""
        self._now[0] = min(int(share * self.nets), self.nets - 1)

    def net(self) -> nn.Module:
        return self._net(64)

    def _net(self, width: int) -> nn.Module:
        widths = self.inputs, width, width, width, self.outputs
        return nn.Sequential(*perceptron(*widths, activation=nn.Tanh))

    def answered(self, inputs: Tensor) -> Batch:
        return inputs, _net_of(self, self._now[0])(inputs)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(model(inputs), targets)


@lru_cache(maxsize=8)
def _net_of(task: NewTargets, number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(10**6 + number)
        net = task._net(32).requires_grad_(False)
    for p in net.parameters():
        p.mul_(1.7)  # else it is nearly constant
    return net


@dataclass(frozen=True, kw_only=True)
class WholeTask(LowRankTask):
    """Train all weights of a GPT that AdamW has trained on another text before."""

    kinds: ClassVar = {}

    def net(self) -> nn.Module:
        return self.pretrained()


_RECIPE = Recipe(learning_rate=3e-3, schedule="cosine")


@dataclass(frozen=True, kw_only=True)
class FewRows(ClassificationTask):
    """Classify the rows of a small table with a net that can learn all of them by heart."""

    metric = "validation loss (nats per row)"

    steps: int = 800
    recipe: Recipe = _RECIPE
    table: str = "digits"
    rows: int = 300  #: for training; the others are held out
    wrong: float = 0.0  #: share of the training labels that are drawn anew
    batch_size: int = 100

    def data(self) -> tuple[Batch, Batch]:
        return _rows(self.table, self.rows, self.wrong)

    def net(self) -> nn.Module:
        (inputs, labels), _ = self.data()
        return nn.Sequential(*perceptron(inputs.shape[1], 64, 64, 64, int(labels.max()) + 1))

    def batches(self, seed: int) -> Iterator[Batch]:
        return drawn(self.data()[0], self.batch_size, seed)

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
    recipe: Recipe = _RECIPE
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


def _named(*tasks: Task) -> dict[str, Task]:
    return {task.name: task for task in tasks}


FEW = _named(
    FewRows("few-digits", "300 digits"),
    FewRows("wrong-digits", "600 digits, a fifth with any label", rows=600, wrong=0.2),
    FewRows("cancer", "280 rows of breast cancer", table="breast_cancer", rows=280, batch_size=32),
    FewBytes("few-bytes", "12 kB of text, GPT"),
)
"""Data that a net overfits."""

_HEAD = Recipe(betas=(0.9, 0.999), gradient_clip=None, schedule="cosine")

HEADS = _named(
    *(
        ManyClasses(f"head-{rate:g}", f"rate {rate:g}", recipe=replace(_HEAD, learning_rate=rate))
        for rate in (0.001, 0.003, 0.01, 0.03)
    )
)
"""A classifier whose hidden matrix has a tenth of the weights."""

CHANGING = {
    f"new-{nets}-{rate:g}": NewTargets(
        name=f"new-{nets}-{rate:g}",
        title=f"{nets} targets, rate {rate:g}",
        recipe=Recipe(rates=(rate,), learning_rate=rate, weight_decay=0.0, schedule="cosine"),
        nets=nets,
    )
    for nets in (2, 4)
    for rate in (3e-4, 1e-3, 3e-3)
}
"""Targets that change in mid-run."""

TUNED = _named(
    *(
        WholeTask(
            f"tuned-{steps}-{rate:g}",
            f"pretrained for {steps:,} steps, rate {rate:g}",
            recipe=Recipe(learning_rate=rate),
            steps=300,
            base_steps=steps,
        )
        for steps, rate in ((600, 0.002), (3000, 0.002), (3000, 0.0005))
    )
)
"""Full fine-tuning."""

TASKS = {**FEW, **HEADS, **CHANGING, **TUNED}
