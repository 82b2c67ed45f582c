"""The judge: decides from a measurement whether predicted steps stand; it changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import final

from hybrid_predict.verify.measurement import Measurement


class Verdict(str, Enum):
    """The decision of a verifying step about the predicted steps right before it."""

    STANDS = "stands"
    UNDONE = "undone"


@final
@dataclass(frozen=True)
class Judgement:
    """The result of judging one measurement.

    Args:
        verdict: Verdict on the predicted steps, or None if there were none.
        alarm: Reason for pausing predicted steps; empty if there is none.
    """

    verdict: Verdict | None
    alarm: str = ""


def judge(measured: Measurement) -> Judgement:
    """Judge one full step.

    Predicted steps are undone if the verifying step's gradients, or its loss known before the
    update, are not finite or exceed the limits. A loss that is only known after the update undoes
    nothing, but pauses predicted steps.

    Args:
        measured: The measurement of the full step.
    """
    if not measured.predicted:
        return Judgement(None)
    if measured.held:
        return Judgement(Verdict.UNDONE, measured.held)
    if not measured.good:
        return Judgement(Verdict.UNDONE, _cause(measured))
    return Judgement(Verdict.STANDS, _loss_cause(_loss(measured), measured.limits[0]))


def cause(norm: float, limit: float, loss: float | None, loss_limit: float) -> str:
    """Return why a verifying step undid the predicted steps.

    Args:
        norm: Its gradient norm.
        limit: Largest acceptable gradient norm.
        loss: Its loss if it was known before the update, else None.
        loss_limit: Largest acceptable loss.
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
    """Return the cause of a verdict that was made on the device; the worst optimizer counts."""
    pairs = zip(measured.norms, measured.limits[1:], strict=True)
    finite = [pair for pair in pairs if math.isfinite(pair[0])]
    norm, limit = max(finite, key=lambda pair: pair[0] / pair[1], default=(0.0, math.inf))
    if not all(math.isfinite(n) for n in measured.info.norms.values()):
        norm = math.nan
    return cause(norm, limit, _loss(measured), measured.limits[0])
