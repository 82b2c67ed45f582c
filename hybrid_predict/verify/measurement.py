"""What is measured in a full step: packed on the device, unpacked on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.accounts.saved import check_count
from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.window import Reading, reading
from hybrid_predict.tensors import ranks
from hybrid_predict.torch.gradients import GradientInfo
from hybrid_predict.verify.descent import Slopes

_TINY = torch.finfo(torch.float32).tiny


@final
class Moved(NamedTuple):
    """How predicted steps have moved one tensor; 0-dim tensors of the local shard.

    Args:
        length: Length of the movement.
        drift: How far its drift moves at the same learning rate.
        dot: Inner product of the movement with the verifying step's gradient.
    """

    length: Tensor
    drift: Tensor
    dot: Tensor


@final
@dataclass(frozen=True)
class Measurement:
    """Everything that was measured in one full step.

    Args:
        step: Number of the full step, from 1.
        predicted: Number of predicted steps right before it.
        warmup: Whether it belongs to the warm-up.
        limits: Largest acceptable loss, then largest acceptable gradient norm per optimizer.
        held: Reason for holding back the update before the numbers were read; empty if it was not.
        good: Whether the gradients, and the loss known before the update, were within the limits.
        loss_known: Whether the loss is known.
        info: Loss and gradients.
        norms: Gradient norm per optimizer; nan if none was measured.
        length: Length of each predicted step, in lengths of the drift; None if there was none.
        windows: Readings of the windows that were closed.
        slopes: How steep predicted steps were, and the full step; None without predicted steps.
    """

    step: int
    predicted: int
    warmup: bool
    limits: tuple[float, ...]
    held: str
    good: bool
    loss_known: bool
    info: GradientInfo
    norms: tuple[float, ...] = ()
    length: float | None = None
    windows: tuple[Reading, ...] = ()
    slopes: Slopes | None = None


def pack(
    about: Mapping[str, Any],
    *,
    good: Sequence[Tensor],
    loss: Tensor | float | None,
    norms: Mapping[str, Tensor],
    owners: Sequence[int],
    moved: Mapping[str, Moved],
    roots: Sequence[float] | None,
    windows: Sequence[tuple[list[Any], Tensor]] = (),
    slopes: Sequence[Tensor] = (),
) -> tuple[dict[str, Any], Tensor]:
    """Pack everything measured on the device into one flat tensor, with a single all-reduce.

    Args:
        about: ``step``, ``predicted``, ``warmup``, ``limits`` and ``held`` of the
            :class:`Measurement`, as primitives.
        good: One 0-dim bool per optimizer that was judged.
        loss: The training loss, or None if it is unknown.
        norms: Gradient norm of each parameter's local shard, 0-dim, by name.
        owners: Number of the optimizer of each of these parameters.
        moved: The movement by predicted steps, by name of the tensors that have a gradient.
        roots: One factor per norm, with which every element counts once over the ranks; None for a
            single rank.
        windows: Tag and flat numbers of each closed window, of this rank.
        slopes: Numbers of :class:`Slopes` of each group that was predicted, of this rank.

    Returns:
        A tag of primitives that describes the tensor, and the flat tensor, of 64 bits if a window
        has them, else of 32.
    """
    names = {"norms": list(norms), "owners": list(owners), "moved": list(moved)}
    sizes = [[tag, numbers.numel()] for tag, numbers in windows]
    first = next(iter(norms.values()), loss)
    device = first.device if isinstance(first, Tensor) else None
    weights = dict(zip(norms, roots or [1.0] * len(norms), strict=True))
    lengths = [m.length for m in moved.values()] + [m.drift for m in moved.values()]
    own = [weights[name] for name in moved]
    scaled = _scaled([*norms.values(), *lengths], [*weights.values(), *own, *own], device)
    dots = _scaled([m.dot for m in moved.values()], [w * w for w in own], device)
    head = [
        _scalar(0.0 if loss is None else loss, device),
        _scalar(float(loss is not None), device),
        sum((1.0 - _scalar(g, device) for g in good), _scalar(0.0, device)),
    ]
    steep = [torch.stack([s.to(scaled.device) for s in slopes]).sum(0)] if slopes else []
    closed = steep + [numbers.to(scaled.device) for _, numbers in windows]
    scaled, sums = ranks.combine(scaled, torch.cat([torch.stack(head), dots, *closed]))
    tag = {**about, **names, "slopes": bool(slopes), "windows": sizes}
    return tag, torch.cat([sums[:3], scaled, sums[3:]])


def unpack(tag: Mapping[str, Any], values: Sequence[float]) -> Measurement:
    """Make a measurement from the tag and the numbers of :func:`pack`, on the host.

    Raises:
        CheckpointError: If the numbers do not fit the tag.
    """
    names, moved = list(tag["norms"]), list(tag["moved"])
    count, pairs = len(names), len(moved)
    steep = len(Slopes._fields) if tag["slopes"] else 0
    expected = 3 + count + 3 * pairs + steep + sum(size for _, size in tag["windows"])
    if len(values) != expected:
        raise CheckpointError(
            f"state: expected {expected} measured numbers, got {len(values)}. "
            "Resume from another checkpoint."
        )
    loss, known, bad = values[:3]
    norms = list(values[3 : 3 + count])
    lengths, drifts, dots = (
        list(values[3 + count + k * pairs : 3 + count + (k + 1) * pairs]) for k in range(3)
    )
    at = 3 + count + 3 * pairs
    slopes = Slopes(*values[at : at + steep]) if steep else None
    windows, at = [], at + steep
    for about, size in tag["windows"]:
        windows.append(reading(about, values[at : at + size]))
        at += size
    by_name = dict(zip(names, norms, strict=True))
    alignments = {
        name: -dot / max(_TINY, by_name[name] * length)
        for name, length, dot in zip(moved, lengths, dots, strict=True)
    }
    owners = tag["owners"]
    groups = [[n for n, k in zip(norms, owners, strict=True) if k == i]
              for i in range(len(tag["limits"]) - 1)]  # fmt: skip
    loss = loss / known if known else math.nan
    info = GradientInfo(loss, _length(norms), by_name, alignments)
    return Measurement(
        step=tag["step"],
        predicted=check_count("predicted", tag["predicted"]),
        warmup=tag["warmup"],
        limits=tuple(tag["limits"]),
        held=tag["held"],
        good=not bad,
        loss_known=bool(known),
        info=info,
        norms=tuple(map(_length, groups)),
        length=_per_drift(lengths, drifts, tag["predicted"]),
        windows=tuple(windows),
        slopes=slopes,
    )


def as_scalar(loss: object) -> Tensor | float | None:
    """Detach a loss: the mean of a tensor, a number, or None."""
    if isinstance(loss, Tensor):
        mean: Any = loss.detach().float().mean()
        return mean.full_tensor() if hasattr(mean, "full_tensor") else mean
    return float(loss) if isinstance(loss, (int, float)) else None


def _length(norms: Sequence[float]) -> float:
    """Norm of a vector from the norms of its parts; nan if one is not finite or there are none."""
    known = norms and all(math.isfinite(n) for n in norms)
    return math.sqrt(math.fsum(n * n for n in norms)) if known else math.nan


def _per_drift(lengths: Sequence[float], drifts: Sequence[float], count: int) -> float | None:
    """Length of one of several equal predicted steps, in lengths of the drift."""
    moved, drift = _length(lengths), _length(drifts)
    return moved / (drift * count) if math.isfinite(moved) and drift > 0.0 else None


def _scaled(
    values: Sequence[Tensor], factors: Sequence[float], device: torch.device | None
) -> Tensor:
    """Multiply 0-dim tensors by numbers, shape (K,), without a copy from the host."""
    if not values:
        return torch.zeros(0, device=device)
    own = [_scalar(value, device) for value in values]
    return torch.stack(torch._foreach_mul(own, list(factors)) if set(factors) != {1.0} else own)


def _scalar(value: Tensor | float | bool, device: torch.device | None) -> Tensor:
    """Convert a value to a 0-dim 32-bit tensor on a device; tensors in this form are not copied."""
    if isinstance(value, Tensor):
        if value.dim() == 0 and value.dtype == torch.float32 and value.device == device:
            return value if not value.requires_grad else value.detach()
        return value.detach().to(device, torch.float32).reshape(())
    return torch.full((), float(value), dtype=torch.float32, device=device)
