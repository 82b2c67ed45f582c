"""The verdict on predicted steps, and a sequential test over many verdicts."""

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
"""Reasons for undoing predicted steps."""

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
    r"""Evidence against predicted steps: the wealth W of bets against them.

    .. math::
        x_t = \Bigl[ \frac{-\langle m, \Delta \rangle}{\|\Delta\|} <
        \frac{1}{10} \, \frac{-\langle m, D \rangle}{\|D\|} \Bigr], \qquad
        W_t = \Bigl(W_{t-1} + \frac{1}{t (t + 1)}\Bigr)
        \Bigl(\frac{1/2}{1/5}\Bigr)^{x_t} \Bigl(\frac{1/2}{4/5}\Bigr)^{1 - x_t}

    Predicted steps end once :math:`W_t \ge 1 / \alpha`, with :math:`\alpha = 0.01`. As long as
    :math:`P(x_t = 1)`, given all earlier verdicts, is at most 1/5, :math:`W_t + 1 / (t + 1)` is a
    nonnegative supermartingale that begins with 1, so by Ville's inequality the probability of this
    in a run is at most :math:`\alpha`. W mixes tests from every start, to find late ends too.

    References:
        - Ville, Étude critique de la notion de collectif (1939).
        - Wald (1945), https://doi.org/10.1214/aoms/1177731118
        - Mixtures of tests from every start: Shin, Ramdas and Rinaldo, E-detectors (2024),
          https://arxiv.org/abs/2203.03532
    """

    verdicts: int = 0  # that have counted
    wealth: float = 0.0
    ended: bool = False  # whether the wealth was ever enough to end predicted steps

    def weigh(self, slopes: Slopes) -> None:
        """Add a verdict, unless nothing moved, or decay turned the full step itself uphill."""
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
