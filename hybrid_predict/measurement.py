"""What one full step measures, and how numbers on the device are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.policy.confidence import Window
from hybrid_predict.policy.policy import Key
from hybrid_predict.policy.verdict import Slopes
from hybrid_predict.record import StepRecord
from hybrid_predict.torch import lists, ranks
from hybrid_predict.torch.gradients import GradientInfo

_TINY = torch.finfo(torch.float32).tiny


@final
class Part(NamedTuple):
    """Numbers of a full step on the device.

    Args:
        norms: Norms of this rank's shards; their squares add up over the ranks.
        sums: Numbers that add up over the ranks.
        use: Called with both once they are read.
    """

    norms: Tensor
    sums: Tensor
    use: Callable[[list[float], list[float]], None]


def read(parts: Sequence[Part]) -> None:
    """Read numbers with a single all-reduce, and a single wait for the device."""
    if not parts:
        return
    device = parts[0].sums.device
    norms, sums = ranks.combine(
        torch.cat([part.norms.to(device) for part in parts]),
        torch.cat([part.sums.to(device) for part in parts]),
    )
    numbers = iter(torch.cat([norms, sums]).tolist())
    firsts = [[next(numbers) for _ in range(len(part.norms))] for part in parts]
    for part, first in zip(parts, firsts, strict=True):
        part.use(first, [next(numbers) for _ in range(len(part.sums))])


@final
class Moved(NamedTuple):
    """The movement of one tensor by predicted steps.

    Args:
        length: Length of the movement.
        drift: How far its drift moves at the same learning rate.
        dot: Inner product of the movement with the verifying step's gradient.
    """

    length: float
    drift: float
    dot: float


@final
@dataclass
class Measurement:
    """What was measured in one full step, as far as it is read.

    Args:
        step: Number of the full step, from 1.
        predicted: Number of predicted steps right before it.
        warmup: Whether it belongs to the warm-up.
        held: Why its predicted steps are undone; empty if they stand.
        loss: Mean loss over the ranks; None if it is unknown.
        norms: Norm of each gradient, by name.
        optimizers: Number of the optimizer of each of these.
        moved: Movement by predicted steps of the tensors that have a gradient, by name.
        windows: What the windows have measured that were closed.
        slopes: Slopes of predicted steps and of the full step; None without predicted steps.
        stop: Whether any rank was asked to stop.
    """

    step: int
    predicted: int = 0
    warmup: bool = False
    held: str = ""
    loss: float | None = None
    norms: dict[str, float] = field(default_factory=dict)
    optimizers: dict[str, int] = field(default_factory=dict)
    moved: dict[str, Moved] = field(default_factory=dict)
    windows: list[tuple[Key, Window]] = field(default_factory=list)
    slopes: Slopes | None = None
    stop: bool = False

    def norm(self, optimizer: int) -> float:
        """Return the norm of an optimizer's gradients; nan if it has none, or one is not finite."""
        return norm_of([n for name, n in self.norms.items() if self.optimizers[name] == optimizer])

    @property
    def info(self) -> GradientInfo | None:
        """Loss and gradients; None if no gradient was measured."""
        if not self.norms:
            return None
        alignments = {
            name: -moved.dot / max(_TINY, self.norms[name] * moved.length)
            for name, moved in self.moved.items()
        }
        loss = math.nan if self.loss is None else self.loss
        return GradientInfo(loss, norm_of(self.norms.values()), self.norms, alignments)

    @property
    def length(self) -> float | None:
        """Length of each predicted step, in lengths of the drift; None if there was none."""
        moved = norm_of([each.length for each in self.moved.values()])
        drift = norm_of([each.drift for each in self.moved.values()])
        known = math.isfinite(moved) and drift > 0.0
        return moved / (drift * self.predicted) if known else None

    @property
    def ends(self) -> Mapping[str, float]:
        """Inner product of each tensor's predicted movement with its gradient after it."""
        return {name: moved.dot for name, moved in self.moved.items()}

    def take_loss(self, total: float, known: float) -> None:
        """Take the sum of the losses of the ranks that know theirs."""
        self.loss = total / known if known else None

    def take_rest(self, closed: Sequence[tuple[Key, int]], numbers: Sequence[float]) -> None:
        """Take slopes, if predicted steps were verified, and windows, in this order.

        Args:
            closed: Kind and optimizer of each window, and its number of steps.
            numbers: Their numbers.
        """
        size = len(Window._fields) - 1
        start = len(numbers) - size * len(closed)
        if start:
            self.slopes = Slopes(*numbers[:start])
        for key, steps in closed:
            self.windows.append((key, Window(steps, *numbers[start : start + size])))
            start += size


def on_host(numbers: Tensor) -> bool:
    """Return whether numbers can be read without waiting for a device."""
    return numbers.device.type == "cpu"


def mean_loss(loss: object) -> Tensor | float | None:
    """Detach a loss: the mean of a tensor, a number, or None."""
    if isinstance(loss, Tensor):
        # Some packages subclass tensors, and the functions of such a class may refuse numbers that
        # are no batch (MetaTensor in MONAI does).
        with torch._C.DisableTorchFunctionSubclass():
            mean: Any = loss.detach().float().mean()
        return mean.full_tensor() if hasattr(mean, "full_tensor") else mean
    return float(loss) if isinstance(loss, (int, float)) else None


def unmeasured(record: StepRecord, loss: object, stop: bool | None) -> StepRecord:
    """Return the record of a plain full step with its loss, unless other ranks have theirs.

    A loss on a device is left unknown, because reading it would wait. If ``stop`` is not None, the
    ranks agree on it here.
    """
    if stop is not None:
        record = replace(record, stop=record.stop or ranks.total(bool(stop)) > 0)
    on_device = isinstance(loss, Tensor) and loss.device.type != "cpu"
    if loss is None or on_device or ranks.size() > 1 or record.loss is not None:
        return record
    mean = mean_loss(loss)
    return record if mean is None else replace(record, loss=float(mean))


def norm_of(norms: Iterable[float]) -> float:
    """Return the norm of a vector from those of its parts; nan if not finite or without parts."""
    parts = list(norms)
    known = parts and all(map(math.isfinite, parts))
    return math.sqrt(math.fsum(n * n for n in parts)) if known else math.nan


def scaled(
    values: Sequence[Tensor], factors: Sequence[float], device: torch.device | None
) -> Tensor:
    """Multiply 0-dim tensors by numbers, shape (K,), without a copy from the host."""
    if not values:
        return torch.zeros(0, device=device)
    return lists.scaled(torch.stack([as_scalar(value, device) for value in values]), factors)


def as_scalar(value: Tensor | float | bool, device: torch.device | None) -> Tensor:
    """Convert a value to a 0-dim 32-bit tensor on a device; tensors in this form are not copied."""
    if isinstance(value, Tensor):
        value = value.detach() if value.requires_grad else value
        ready = value.dtype == torch.float32 and value.device == device and value.dim() == 0
        return value if ready else value.to(device, torch.float32).reshape(())
    return torch.full((), float(value), dtype=torch.float32, device=device)
