"""The gate: which groups of tensors may be predicted, by skill, length and size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple, final

from hybrid_predict.rules.skill import SHORTEST

NO_SKILL = "no predicted steps while forecasts have not shown enough skill"
TOO_SHORT = (
    "no predicted steps while they would be too short: forecasts have skill, but lead less than "
    f"{SHORTEST:g} of the way that the weights move in an average full step"
)
UNPREDICTED = "no predicted steps: "
TOO_EXPENSIVE = (
    f"{UNPREDICTED}batches are too small for layers this wide, so max_overhead allows no corrected "
    "updates"
)
NO_BUDGET = f"{UNPREDICTED}max_overhead=0 allows no corrected updates"
TOO_FEW = (
    "no predicted steps: they would move less than a quarter of the trained weights outside "
    "embeddings; if you chose predictors, name more kinds"
)
NOT_LASTING = "no predicted steps while forecasts do not last"
NOT_UPDATED = "no predicted steps while too many weights are not updated in every full step"
"""Events of the ledger. Forecasts last where enough weights have an advance."""

_INSTEAD = "full steps took the place of some predicted steps, while "
AFTERWARDS = {
    NO_SKILL: f"{_INSTEAD}forecasts had not shown enough skill",
    TOO_SHORT: f"{_INSTEAD}forecasts were too short: less than {SHORTEST:g} of the way that the "
    "weights moved in an average full step",
    NOT_LASTING: f"{_INSTEAD}forecasts did not last",
    NOT_UPDATED: f"{_INSTEAD}too many weights were not updated in every full step",
}
"""What these events say of a run that has ended, and made predicted steps at other times."""

NOTHING = (
    "there is nothing to predict: no trained parameter is a hidden matrix, or of a kind that you "
    "named in predictors"
)
"""Event of the ledger: predicted steps are planned, but there is nothing to forecast."""

LEAST_MOVED = 4
"""Predicted steps have to move at least one in this many trained weights: they take the place of
full steps, in which all would learn. Tables do not count, of which a full step moves few rows."""

REST_STEPS = 64
"""Number of full steps for which a group that a full step did not update is not predicted."""


@final
class Part(NamedTuple):
    """A group of tensors that has a predictor."""

    size: float  # number of entries
    gated: bool  # whether its predicted steps need skill
    ready: Any  # whether it may be moved now; a bool, or a 0-dim array
    table: bool = False  # whether it is of embeddings, which do not count as trained weights
    decides: bool = True  # whether predicted steps are made for it; others only move along


def judged(parts: Sequence[Part], trained: float) -> list[bool]:
    """Return for each part whether no predicted step is made without parts like it.

    They are those that decide. If these have too few of the weights that are ``trained`` outside
    embeddings, they are all parts.
    """
    deciding = [part for part in parts if part.decides]
    widened = bool(deciding) and too_few(deciding, trained)
    return [part.decides or widened for part in parts]


def suffice(parts: Sequence[Part], trained: float) -> Any:
    """Return whether the ready ones of the judged parts have most of their weights, and enough.

    Otherwise a predicted step would replace a full step and move only few of the weights that are
    ``trained`` outside embeddings.
    """
    parts = list(compress(parts, judged(parts, trained)))
    if not parts:
        return False
    gated = [part for part in parts if part.gated]
    most = 2 * sum(part.ready * part.size for part in gated) >= sum(part.size for part in gated)
    moved = sum(part.ready * part.size for part in parts if not part.table)
    return most & (LEAST_MOVED * moved >= trained)


def too_expensive(budget: float | None) -> str:
    """Return why nothing is corrected, from the budget of operations."""
    return TOO_EXPENSIVE if budget else NO_BUDGET


def too_few(parts: Sequence[Part], trained: float) -> bool:
    """Return whether predicted steps would move too few weights even if every part were ready."""
    return LEAST_MOVED * sum(part.size for part in parts if not part.table) < trained
