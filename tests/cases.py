"""The tables that parametrize the suite: to add a predictor, backend or optimizer, add a row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict import (
    AlignmentHorizon,
    FixedHorizon,
    LinearPredictor,
    MomentumPredictor,
    SpectralPredictor,
)
from hybrid_predict.horizons import AbstractHorizon
from hybrid_predict.predictors import AbstractPredictor
from hybrid_predict.testing.backends import NUMPY, NUMPY_NARROW, TORCH, TORCH_NARROW

DECAY = 0.8


@dataclass(frozen=True)
class PredictorCase:
    """A predictor, and how long its forecast is after n equal displacements of length 1.

    ``length(h, closed_loop, weight)`` takes the horizon and the weight 1 - decay**n.
    """

    predictor: AbstractPredictor
    length: Callable[[float, bool, float], float]


def averaged_length(h: float, closed_loop: bool, weight: float) -> float:
    return weight * (h / (1 + h) if closed_loop else h)


PREDICTOR_CASES = {
    "linear": PredictorCase(LinearPredictor(decay=DECAY), lambda h, closed, weight: h),
    "momentum": PredictorCase(MomentumPredictor(decay=DECAY), averaged_length),
    "spectral": PredictorCase(
        SpectralPredictor(decay=DECAY, stretch=1.0), lambda h, closed, weight: h
    ),
}


@dataclass(frozen=True)
class HorizonCase:
    """A horizon rule, the bounds of its horizons per kind, and whether it adapts."""

    rule: AbstractHorizon
    bounds: dict[str, tuple[float, float]]


HORIZON_CASES = {
    "alignment": HorizonCase(
        AlignmentHorizon(floors={"hidden": 1.0}, longest=15.0),
        {"hidden": (1.0, 15.0), "vector": (0.0, 15.0)},
    ),
    "fixed": HorizonCase(FixedHorizon(updates=2.5), {"hidden": (2.5, 2.5), "vector": (2.5, 2.5)}),
}


BACKEND_CASES = {"numpy": NUMPY, "torch": TORCH}

HISTORY_CASES = {
    **BACKEND_CASES,
    "numpy, bfloat16": NUMPY_NARROW,
    "torch, bfloat16": TORCH_NARROW,
}
"""The backends with histories of either type."""


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

EVERY_KIND = {"hidden": "spectral", "embedding": "momentum", "head": "linear", "vector": "momentum"}
"""A predictor for every kind, so that forecasts move the whole model."""
