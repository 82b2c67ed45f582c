"""The gate: which groups of tensors may be predicted, by skill, length and size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

from hybrid_predict.rules.skill import SHORTEST

NO_SKILL = "no predicted steps where they were planned: forecasts have not shown enough skill"
"""Event of the ledger: planned predicted steps are not made for lack of skill."""

TOO_SHORT = (
    "no predicted steps where they were planned: forecasts have skill, but predicted steps would "
    f"be shorter than {SHORTEST:g} of the drift"
)
"""Event of the ledger: planned predicted steps are not taken because they would be too short."""

NOT_LASTING = "no predicted steps while forecasts do not last"
"""Event of the ledger: with ``speedup="auto"`` no kind of parameters has an advance."""

TOO_EXPENSIVE = (
    "no predicted steps where they were planned: max_overhead leaves corrected updates too weak to "
    "make up for them; larger batches or a larger max_overhead help"
)
"""Event of the ledger: planned predicted steps are not made because the budget is too small."""

LEAST_MOVED = 4
"""Predicted steps have to move at least one in this many of the trained weights that count.

A predicted step takes the place of a full step, in which all weights would learn. Tables are not
counted: a full step moves only their rows in the batch, and they are most of a small language
model. A quarter leaves room for heads: the matrices are two fifths of the other weights in a GPT of
6 layers of width 512 with a head of 50,000 words of its own. Below it, as where most matrices are
stored as vectors, most weights would miss each full step that is replaced.
"""

TOO_FEW = (
    "no predicted steps where they were planned: they would move less than a quarter of the "
    "trained weights outside embeddings; predictors for more kinds help"
)
"""Event of the ledger: planned predicted steps are not made because they would move too little."""


@final
class Part(NamedTuple):
    """A group of tensors that has a predictor.

    Args:
        size: Number of its entries.
        gated: Whether its predicted steps need skill, a bool.
        ready: Whether its forecasts have skill and are long enough; a bool, or a 0-dim bool array.
        table: Whether it is of embeddings, which do not count as trained weights that move.
    """

    size: int
    gated: bool
    ready: Any
    table: bool = False


def suffice(parts: Sequence[Part], trained: int) -> Any:
    """Return whether the ready parts have most of the gated weights, and enough of all weights.

    Otherwise a predicted step would replace a full step and move only few weights.

    Args:
        parts: All groups with a predictor.
        trained: Number of trained weights outside embeddings.
    """
    gated = [part for part in parts if part.gated]
    most = 2 * _ready(gated) >= sum(part.size for part in gated)
    free = [part._replace(ready=True) for part in parts if not part.gated]
    moved = _ready(part for part in (*gated, *free) if not part.table)
    return most & (LEAST_MOVED * moved >= trained)


def too_few(parts: Sequence[Part], trained: int) -> bool:
    """Return whether predicted steps would move too few weights even if every part were ready."""
    return LEAST_MOVED * sum(part.size for part in parts if not part.table) < trained


def _ready(parts: Iterable[Part]) -> Any:
    """Return the number of weights in the parts that are ready."""
    return sum((part.ready * part.size for part in parts), 0)
