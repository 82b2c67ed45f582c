"""The tables that parametrize the suite; a new predictor, update or optimizer adds a row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict import FittedPredictor, MomentumPredictor, SpectralUpdate
from hybrid_predict.config import KINDS
from hybrid_predict.forecast.predictors import Predictor
from hybrid_predict.updates import AbstractUpdate

PREDICTOR_CASES: dict[str, Predictor] = {
    "momentum": MomentumPredictor(decay=0.8, coefficient=0.7),
    "fitted": FittedPredictor(decay=0.8),
}
"""Every registered predictor, with other settings than its own."""

UPDATE_CASES: dict[str, AbstractUpdate] = {
    "spectral": SpectralUpdate(share=0.8, bound=2.0, decay=0.9, newest=0.3, longest=3)
}
"""Every registered update, with other settings than its own."""

EVERY_KIND = dict.fromkeys(KINDS, MomentumPredictor(gated=False))
"""A predictor for every kind, so that predicted steps move the whole model whatever their skill."""

UNGATED = {"hidden": EVERY_KIND["hidden"]}
"""The default, but for the skill that short runs have no time to show."""


OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9, weight_decay=0.01),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=False),
    "adamw-foreach": lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=True),
    "adamw-fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.003, momentum=0.5),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.02),
}
if hasattr(torch.optim, "Adafactor"):
    OPTIMIZERS["adafactor"] = lambda ps: torch.optim.Adafactor(ps, lr=0.01)


class TiedLM(nn.Module):
    """Embedding, one hidden layer, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.embedding(tokens))))


class PartlyTrained(nn.Module):
    """A frozen layer, three trained ones, and a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.outer(torch.tanh(self.inner(self.frozen(x))))))


def mlp() -> nn.Module:
    layers = nn.Linear(6, 10), nn.Tanh(), nn.Dropout(0.2), nn.Linear(10, 8), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(8, 3))


def conv_net() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 2 * 2, 3))


@dataclass(frozen=True)
class ModelCase:
    """A small model and the shape of its input; ``tokens`` for inputs out of a vocabulary."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 3
    tokens: bool = False

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """Batch number k, the same at every call."""
        generator = torch.Generator().manual_seed(1000 + k)
        targets = torch.randint(self.classes, (8,), generator=generator)
        if self.tokens:
            return torch.randint(self.classes, (8,), generator=generator), targets
        return torch.randn(8, *self.shape, generator=generator), targets

    @staticmethod
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


MODELS = {
    "mlp": ModelCase(mlp, (6,)),
    "conv": ModelCase(conv_net, (1, 6, 6)),
    "tied": ModelCase(TiedLM, (), classes=11, tokens=True),
    "partly-trained": ModelCase(PartlyTrained, (6,)),
}
