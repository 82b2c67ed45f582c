"""The verdict on predicted steps, its causes, and a sequential test over many verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, final


class Verdict(str, Enum):
    """The decision of a verifying step about the predicted steps right before it."""

    STANDS = "stands"
    UNDONE = "undone"


NO_UPDATE = "no update followed the predicted steps"
READ = "a state dict was read or loaded in a verifying step"
INTERRUPTED = "an error interrupted the full step"
QUIET = NO_UPDATE, READ, INTERRUPTED
"""Reasons for undoing predicted steps that are no alarm: nothing was found against them."""


def cause(norm: float, norm_limit: float, loss: float | None, loss_limit: float) -> str:
    """Return why a verifying step undoes the predicted steps; empty if they stand.

    Args:
        norm: Norm of its gradients.
        norm_limit: Largest norm with which they stand.
        loss: Its loss; None if it is not known yet.
        loss_limit: Largest loss with which they stand.
    """
    if not math.isfinite(norm):
        return "the gradient of a verifying step was not finite"
    if norm > norm_limit:
        return "the gradient of a verifying step was many times its usual length"
    return loss_cause(loss, loss_limit)


def loss_cause(loss: float | None, limit: float) -> str:
    """Return what is wrong with the loss of a verifying step; empty if nothing is."""
    if loss is None or (math.isfinite(loss) and loss <= limit):
        return ""
    if math.isfinite(loss):
        return "the loss of a verifying step stood far above its mean"
    return "the loss of a verifying step was not finite"


STEEPNESS = 0.1
"""A predicted step goes downhill if it is at least this steep, as a share of the full step's own
steepness. Nearly all forecasts along the drift are, placebos only by chance (decision 5)."""

MOST_LOST = 0.2  # largest share of verdicts in which sound predicted steps do not go downhill
CHANCE = 0.5  # the share by chance, which the test bets on
LEVEL = 0.01  # largest probability, over a whole run, of ending predicted steps that are sound

_FAILED = "they failed to go downhill more often than chance allows"
ENDED = f"predicted steps ended: {_FAILED}"
RESTARTED = f"predicted steps began anew: {_FAILED}"
"""Events of the ledger: what a failed test leads to; the second one with ``speedup="auto"``, and
while forecasts last."""


@final
class Slopes(NamedTuple):
    r"""Slopes of predicted steps and of the full step after them, summed over all tensors.

    Here m is the averaged gradient, that of the verifying step included, :math:`\Delta` the
    predicted movement, and D the displacement of the verifying step.
    """

    product: float  # <m, Δ>
    square: float  # |Δ|²
    own_product: float  # <m, D>
    own_square: float  # |D|²


@final
@dataclass
class Evidence:
    """Evidence against predicted steps so far.

    Args:
        verdicts: Number of verdicts that have counted.
        wealth: Wealth of the bets against predicted steps.
        ended: Whether it was ever enough to end them.
    """

    verdicts: int = 0
    wealth: float = 0.0
    ended: bool = False

    def weigh(self, slopes: Slopes) -> None:
        r"""Add one verdict to the evidence.

        .. math::
            x_t = \Bigl[ \frac{-\langle m, \Delta \rangle}{\|\Delta\|} <
            \frac{1}{10} \, \frac{-\langle m, D \rangle}{\|D\|} \Bigr], \qquad
            W_t = \Bigl(W_{t-1} + \frac{1}{t (t + 1)}\Bigr)
            \Bigl(\frac{1/2}{1/5}\Bigr)^{x_t} \Bigl(\frac{1/2}{4/5}\Bigr)^{1 - x_t}

        Predicted steps end once :math:`W_t \ge 1 / \alpha`, with :math:`\alpha = 0.01`. As long as
        :math:`P(x_t = 1)`, given all earlier verdicts, is at most 1/5, :math:`W_t + 1 / (t + 1)` is
        a nonnegative supermartingale that begins with 1, so by Ville's inequality the probability
        of this in a run is at most :math:`\alpha`. W mixes tests that begin at each verdict, so
        steps that turn bad late are found too. A verdict does not count if the full step does not
        go downhill itself, as where weight decay dominates, or if nothing has moved.

        References:
            - Ville, Étude critique de la notion de collectif (1939).
            - Wald, Sequential tests of statistical hypotheses (1945),
              https://doi.org/10.1214/aoms/1177731118
            - Mixtures of tests from every start: Shin, Ramdas and Rinaldo, E-detectors (2024),
              https://arxiv.org/abs/2203.03532
        """
        product, square, own_product, own_square = slopes
        moved = square > 0.0 and own_square > 0.0 and own_product < 0.0
        if not (moved and all(map(math.isfinite, slopes))):
            return
        lost = product * math.sqrt(own_square) > STEEPNESS * own_product * math.sqrt(square)
        ratio = CHANCE / MOST_LOST if lost else (1.0 - CHANCE) / (1.0 - MOST_LOST)
        start = 1.0 / ((self.verdicts + 1) * (self.verdicts + 2))
        self.wealth = ratio * (self.wealth + start)
        self.verdicts += 1
        self.ended = self.ended or self.wealth >= 1.0 / LEVEL
