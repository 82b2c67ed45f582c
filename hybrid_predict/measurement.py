"""The measurements of a full step: packed on the device, unpacked on the host, and judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.window import Reading, reading
from hybrid_predict.record import StepRecord
from hybrid_predict.rules.verdict import QUIET, Slopes, Verdict, cause, loss_cause
from hybrid_predict.saved import check_count, damaged
from hybrid_predict.torch import lists, ranks
from hybrid_predict.torch.gradients import GradientInfo

_TINY = torch.finfo(torch.float32).tiny

STOPS = 2
"""Position among measured numbers: how many ranks were asked to stop."""


@final
class Moved(NamedTuple):
    """The movement of one tensor by predicted steps; 0-dim tensors of the local shard.

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
        loss: Loss; None if it is unknown.
        info: Loss and gradients.
        norms: Gradient norm per optimizer; nan if none was measured.
        length: Length of each predicted step, in lengths of the drift; None if there was none.
        windows: Readings of the windows that were closed.
        slopes: Slopes of predicted steps and of the full step; None without predicted steps.
        ends: Inner product of each tensor's predicted movement with its gradient after it.
        stop: Whether any rank was asked to stop.
    """

    step: int
    predicted: int
    warmup: bool
    limits: tuple[float, ...]
    held: str
    good: bool
    loss: float | None
    info: GradientInfo
    norms: tuple[float, ...] = ()
    length: float | None = None
    windows: tuple[Reading, ...] = ()
    slopes: Slopes | None = None
    ends: Mapping[str, float] = field(default_factory=dict)
    stop: bool = False


@final
class Judgement(NamedTuple):
    """The result of judging one measurement.

    Args:
        verdict: Verdict on the predicted steps, or None if there were none.
        reason: Why predicted steps are undone or pause; empty if there is none.
        alarm: Whether they pause.
    """

    verdict: Verdict | None
    reason: str = ""
    alarm: bool = False


def judge(measured: Measurement) -> Judgement:
    """Judge one full step.

    Predicted steps are undone if the verifying step's gradients, or its loss known before the
    update, are not finite or exceed the limits. A loss that is only known after the update does not
    undo them, but pauses predicted steps.
    """
    if not measured.predicted:
        return Judgement(None)
    reason = loss_cause(measured.loss, measured.limits[0])
    if measured.held:
        return Judgement(Verdict.UNDONE, measured.held, bool(reason) or measured.held not in QUIET)
    if not measured.good:
        return Judgement(Verdict.UNDONE, _cause(measured), True)
    return Judgement(Verdict.STANDS, reason, bool(reason))


def _cause(measured: Measurement) -> str:
    """Return the cause of a verdict that was made on the device; the worst optimizer counts."""
    pairs = zip(measured.norms, measured.limits[1:], strict=True)
    finite = [pair for pair in pairs if math.isfinite(pair[0])]
    norm, limit = max(finite, key=lambda pair: pair[0] / pair[1], default=(0.0, math.inf))
    if not all(math.isfinite(n) for n in measured.info.norms.values()):
        norm = math.nan
    return cause(norm, limit, measured.loss, measured.limits[0])


def pack(
    about: Mapping[str, Any],
    *,
    good: Sequence[Tensor],
    loss: Tensor | float | None,
    stop: bool,
    norms: Mapping[str, Tensor],
    owners: Sequence[int],
    moved: Mapping[str, Moved],
    counts: Sequence[float] | None,
    windows: Sequence[tuple[list[Any], Tensor]] = (),
    slopes: Sequence[Tensor] = (),
) -> tuple[dict[str, Any], Tensor]:
    """Pack everything measured on the device into one flat tensor, with a single all-reduce.

    Args:
        about: ``step``, ``predicted``, ``warmup``, ``limits`` and ``held`` of the
            :class:`Measurement`, as primitives.
        good: One 0-dim bool per optimizer that was judged.
        loss: The training loss, or None if it is unknown.
        stop: Whether this rank was asked to stop.
        norms: Gradient norm of each parameter's local shard, 0-dim, by name.
        owners: Number of the optimizer of each of these parameters.
        moved: The movement by predicted steps, by name of the tensors that have a gradient.
        counts: One factor per norm, with which every element counts once over the ranks; None for a
            single rank.
        windows: Tag and flat numbers of each closed window, of this rank.
        slopes: Numbers of :class:`Slopes` of each group that was predicted, of this rank.

    Returns:
        A tag of primitives that describes the tensor, and the flat tensor, of 64 bits if a window
        has them, else of 32.
    """
    first = next(iter(norms.values()), loss)
    device = first.device if isinstance(first, Tensor) else None
    weights = dict(zip(norms, counts or [1.0] * len(norms), strict=True))
    factors, moves = [weights[name] for name in moved], moved.values()
    lengths = [m.length for m in moves] + [m.drift for m in moves]
    scaled = _scaled([*norms.values(), *lengths], [*weights.values(), *factors, *factors], device)
    dots = _scaled([m.dot for m in moves], [w * w for w in factors], device)
    known = [0.0 if loss is None else loss, float(loss is not None), float(stop)]
    bad = sum((1.0 - as_scalar(g, device) for g in good), as_scalar(0.0, device))
    head = [*(as_scalar(number, device) for number in known), bad]
    steep = [torch.stack([s.to(scaled.device) for s in slopes]).sum(0)] if slopes else []
    closed = steep + [numbers.to(scaled.device) for _, numbers in windows]
    scaled, sums = ranks.combine(scaled, torch.cat([torch.stack(head), dots, *closed]))
    names = {"norms": list(norms), "owners": list(owners), "moved": list(moved)}
    sizes = [[tag, numbers.numel()] for tag, numbers in windows]
    tag = {**about, **names, "slopes": bool(slopes), "windows": sizes}
    return tag, torch.cat([sums[:4], scaled, sums[4:]])


def unpack(tag: Mapping[str, Any], values: Sequence[float]) -> Measurement:
    """Make a measurement from the tag and the numbers of :func:`pack`, on the host.

    Raises:
        CheckpointError: If the numbers do not fit the tag.
    """
    names, moved = list(tag["norms"]), list(tag["moved"])
    steep = [len(Slopes._fields)] if tag["slopes"] else []
    sizes = [4, len(names), *[len(moved)] * 3, *steep, *(size for _, size in tag["windows"])]
    if len(values) != sum(sizes):
        raise CheckpointError(
            f"state: expected {sum(sizes)} measured numbers, got {len(values)}. "
            "Resume from another checkpoint."
        )
    numbers = iter(values)
    (loss, known, stops, bad), norms, lengths, drifts, dots, *rest = (
        [next(numbers) for _ in range(size)] for size in sizes
    )
    slopes = Slopes(*rest.pop(0)) if steep else None
    pairs = zip(tag["windows"], rest, strict=True)
    windows = tuple(reading(about, own) for (about, _), own in pairs)
    by_name = dict(zip(names, norms, strict=True))
    alignments = {
        name: -dot / max(_TINY, by_name[name] * length)
        for name, length, dot in zip(moved, lengths, dots, strict=True)
    }
    by_owner: list[list[float]] = [[] for _ in tag["limits"][1:]]
    for norm, owner in zip(norms, tag["owners"], strict=True):
        by_owner[owner].append(norm)
    mean = loss / known if known else math.nan
    return Measurement(
        step=tag["step"],
        predicted=check_count("predicted", tag["predicted"]),
        warmup=tag["warmup"],
        limits=tuple(tag["limits"]),
        held=tag["held"],
        good=not bad,
        loss=mean if known else None,
        info=GradientInfo(mean, _length(norms), by_name, alignments),
        norms=tuple(map(_length, by_owner)),
        length=_per_drift(lengths, drifts, tag["predicted"]),
        windows=windows,
        slopes=slopes,
        ends=dict(zip(moved, dots, strict=True)),
        stop=stops > 0,
    )


def check(measured: Measurement) -> None:
    """Check the fields of a saved measurement, besides its numbers, that are used to judge it.

    Raises:
        CheckpointError: If something cannot be.
    """
    check_count("step", measured.step, 1)
    if not (isinstance(measured.warmup, bool) and isinstance(measured.held, str)):
        raise damaged("a measurement of a full step", (measured.warmup, measured.held))
    limits, count = measured.limits, 1 + len(measured.norms)
    if len(limits) != count or not all(isinstance(x, (int, float)) for x in limits):
        raise damaged(f"{count} limits of a full step", limits)


def newest(read: list[tuple[Measurement, Judgement]]) -> dict[str, Any]:
    """Return what a record tells about the full step that was read last, and whether to stop."""
    if not read:
        return {}
    measured, judgement = read[-1]
    return {
        "read_step": measured.step,
        "verdict": judgement.verdict,
        "length": measured.length,
        "loss": measured.loss,
        "gradients": measured.info if measured.info.norms else None,
        "stop": any(each.stop for each, _ in read),
    }


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

    A loss on a device is left unknown, because nobody reads it later. If ``stop`` is not None, the
    ranks agree on it here.
    """
    if stop is not None:
        record = replace(record, stop=record.stop or ranks.total(bool(stop)) > 0)
    on_device = isinstance(loss, Tensor) and loss.device.type != "cpu"
    if loss is None or on_device or ranks.size() > 1 or record.read_step is not None:
        return record
    mean = mean_loss(loss)
    return record if mean is None else replace(record, read_step=record.step, loss=float(mean))


def _length(norms: Sequence[float]) -> float:
    """Return the norm of a vector from those of its parts; nan if not finite or without parts."""
    known = norms and all(map(math.isfinite, norms))
    return math.sqrt(math.fsum(n * n for n in norms)) if known else math.nan


def _per_drift(lengths: Sequence[float], drifts: Sequence[float], count: int) -> float | None:
    """Return the length of one of several equal predicted steps, in lengths of the drift."""
    moved, drift = _length(lengths), _length(drifts)
    return moved / (drift * count) if math.isfinite(moved) and drift > 0.0 else None


def _scaled(
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
