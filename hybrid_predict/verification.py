"""Whether a forecast was right: verdicts, the loss check, and residuals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hybrid_predict import distributed
from hybrid_predict.backends import TorchBackend
from hybrid_predict.gradients import GradientInfo
from hybrid_predict.parameters import ParameterMapper, WeightDelta, named_buffers

Evaluate = Callable[[], Tensor | float | None]
"""A forward pass on the coming batch, giving its mean loss; None if it has none."""


class Verdict(str, Enum):
    """What verification made of a forecast."""

    ACCEPTED = "accepted"
    SHRUNK = "shrunk"
    REJECTED = "rejected"


def judge(info: GradientInfo, before: Sequence[float], after: Sequence[float]) -> Verdict:
    """The verdict on an applied forecast.

    Args:
        info: What was measured at the forecast point.
        before: Horizons of the forecast.
        after: Horizons that the measurement led to.
    """
    if not info.finite:
        return Verdict.REJECTED
    return Verdict.SHRUNK if sum(after) < sum(before) * (1 - 1e-9) else Verdict.ACCEPTED


@contextmanager
def shielded(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave no trace: no gradients, buffers and random states put back."""
    buffers = [(m, n, b, b.detach().clone()) for m, n, b in named_buffers(model)]
    states = random_states()
    try:
        with torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, kept in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, kept):
                    buffer.copy_(kept)
        set_random_states(states)


def random_states() -> dict[str, Any]:
    """The states of python's, NumPy's and torch's generators, as primitives and tensors."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = numpy_state
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Continue the generators from :func:`random_states`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    keys = keys.numpy().astype(np.uint32)
    np.random.set_state((name, keys, int(position), int(has_gauss), float(cached)))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]])


def loss_rises(
    evaluate: Evaluate,
    model: nn.Module,
    mapper: ParameterMapper,
    delta: WeightDelta,
    tolerance: float,
) -> bool:
    """Whether a forecast raises the loss by more than the tolerance; two forward-only passes.

    The parameters are base weights before and after. Waits for the device.

    Args:
        evaluate: Forward pass on the coming batch, giving its mean loss; None if it has none.
        model: The model, whose buffers and random states are shielded.
        mapper: Maps the forecast onto the model; base weights must be snapshotted.
        delta: The forecast.
        tolerance: Largest accepted rise as a fraction of the loss's magnitude.
    """
    with shielded(model):
        before = distributed.mean(evaluate())
    if before is None:
        return False
    mapper.apply(delta)
    try:
        with shielded(model):
            after = distributed.mean(evaluate())
    finally:
        mapper.rollback()
    rise = float("inf") if after is None else float(after) - float(before)
    return not rise <= tolerance * abs(float(before))


class ResidualScorer:
    r"""Scores a forecast that was not applied against what then happened.

    .. math:: \frac{\|(\theta_{t+k} - \theta_t) - \hat\Delta\|}{\|\hat\Delta\|}

    over k forecast-free full steps, with k the forecast's horizon rounded to at least one step.
    Needs one parameter-sized buffer while a score is open.
    """

    def __init__(self) -> None:
        self._backend = TorchBackend()
        self._sum: list[Tensor] = []
        self._length = torch.zeros(())
        self._roots: Sequence[float] | None = None
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether a forecast waits for its score."""
        return self._left > 0

    def open(self, delta: WeightDelta, steps: int, roots: Sequence[float] | None = None) -> None:
        """Start scoring a forecast over the coming full steps.

        Args:
            delta: The forecast.
            steps: How many of them.
            roots: Of ``distributed.roots`` for its tensors.
        """
        zeros = self._backend.zeros(delta.directions)
        negative = [-f for f in delta.factors]
        self._sum = self._backend.add_scaled(zeros, delta.directions, negative)
        self._roots = roots
        self._length = self._norm()
        self._left = max(1, steps)

    def add(self, displacement: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        """Add one forecast-free step; if it was the last the two norms of the score, 0-dim."""
        if not self.is_open:
            return None
        self._sum = self._backend.add_scaled(self._sum, displacement, [1.0] * len(self._sum))
        self._left -= 1
        if self._left:
            return None
        remainder = self._norm()
        self._sum = []
        return remainder, self._length

    def _norm(self) -> Tensor:
        norms = self._backend.norms(self._sum)
        if self._roots is not None:
            norms = torch.stack(torch._foreach_mul(list(norms), self._roots))
        return torch.linalg.vector_norm(norms)

    def drop(self) -> None:
        """Forget an open score, because a forecast was applied after all."""
        self._sum, self._left = [], 0

    def state_dict(self) -> dict[str, Any]:
        """The open score, if any; with several ranks, which have parts of it, it is given up."""
        kept = distributed.size() == 1
        return {
            "left": self._left if kept else 0,
            "length": self._length,
            "sum": list(self._sum) if kept else [],
        }

    def load_state_dict(self, state: dict[str, Any], like: Sequence[Tensor]) -> None:
        """Continue an open score, on the devices of the tensors ``like``."""
        self.drop()
        if distributed.size() > 1:
            return
        self._left = int(state["left"])
        self._sum = [s.to(x.device).clone() for s, x in zip(state["sum"], like, strict=False)]
        self._length = state["length"].to(like[0].device) if like else state["length"]
