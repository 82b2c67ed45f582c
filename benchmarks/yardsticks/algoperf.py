"""AlgoPerf's smallest workload: one hidden layer of 128 sigmoids, until 97 % are right.

The workload is `mnist` of github.com/mlcommons/algorithmic-efficiency. Its images are not at hand;
scikit-learn's digits of 8x8 pixels take their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.tasks.digits import DigitsTask, augment, load_digits
from benchmarks.yardsticks.plan import Case, Yardstick, constant

ARMS = ("plain", "corrected", "hybrid", "auto", "muon")

WRONG = 0.03


@dataclass(frozen=True, kw_only=True)
class SigmoidTask(DigitsTask):
    """Digits without augmentation."""

    metric = "share of wrong classes"

    shift: int = 0
    noise: float = 0.0
    hidden: int = 128

    def net(self) -> nn.Module:
        first, last = nn.Linear(64, self.hidden), nn.Linear(self.hidden, 10)
        return nn.Sequential(nn.Flatten(), first, nn.Sigmoid(), last)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        images, labels = load_digits()[1]
        clear = augment(images, self.shift, self.noise, torch.Generator().manual_seed(0))
        return float((model(clear).argmax(1) != labels).double().mean())


_TASK = SigmoidTask(
    name="mnist",
    title="one hidden layer of sigmoids on digits",
    steps=7813,
    batch_size=64,
    recipe=constant(1e-3),
)

ALGOPERF = Yardstick(name="algoperf", arms=ARMS, cases=(Case(task=_TASK, target=WRONG, every=10),))
