"""The judge: turns the measurement of a full step into a judgement, and changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hybrid_predict.verify.measurement import Measurement


class Verdict(str, Enum):
    """What the verifying step decided about the predicted steps right before it."""

    STANDS = "stands"
    UNDONE = "undone"


@dataclass(frozen=True)
class Judgement:
    """What follows from one measurement.

    Args:
        verdict: On the predicted steps before it, None without any.
        alarm: Why predicted steps are to pause; empty if they are not.
    """

    verdict: Verdict | None
    alarm: str = ""


def judge(measured: Measurement) -> Judgement:
    """The judgement on one full step.

    Predicted steps are undone where the verifying step's gradients, or its loss where it was known
    before the update, are not finite or beyond the limits. A loss that is only known afterwards
    undoes nothing, but predicted steps pause.

    Args:
        measured: The numbers of the full step.
    """
    if not measured.predicted:
        return Judgement(None)
    if measured.held:
        return Judgement(Verdict.UNDONE, measured.held)
    if not measured.good:
        return Judgement(Verdict.UNDONE, _cause(measured))
    return Judgement(Verdict.STANDS, _loss_cause(_loss(measured), measured.limits[0]))


def cause(norm: float, limit: float, loss: float | None, loss_limit: float) -> str:
    """Why a verifying step could not stand.

    Args:
        norm: Its gradient norm.
        limit: Above which that norm is no longer good.
        loss: Its loss where it was known before the update, else None.
        loss_limit: Above which that loss is no longer good.
    """
    if not math.isfinite(norm):
        return "the gradient of a verifying step was not finite"
    if norm > limit:
        return "the gradient of a verifying step was many times its usual length"
    return _loss_cause(loss, loss_limit) or "the forecast was not finite"


def _loss_cause(loss: float | None, limit: float) -> str:
    if loss is not None and not math.isfinite(loss):
        return "the loss of a verifying step was not finite"
    if loss is not None and loss > limit:
        return "the loss of a verifying step stood far above its mean"
    return ""


def _loss(measured: Measurement) -> float | None:
    return float(measured.info.loss) if measured.loss_known else None


def _cause(measured: Measurement) -> str:
    """The same for a judgement that stayed on the device; the worst optimizer counts."""
    pairs = zip(measured.norms, measured.limits[1:], strict=True)
    finite = [pair for pair in pairs if math.isfinite(pair[0])]
    norm, limit = max(finite, key=lambda pair: pair[0] / pair[1], default=(0.0, math.inf))
    if not all(math.isfinite(n) for n in measured.info.norms.values()):
        norm = math.nan
    return cause(norm, limit, _loss(measured), measured.limits[0])
