"""The gate: decides which groups may be predicted, by skill and by the cost of corrections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from hybrid_predict.forecast.group import TensorGroup
from hybrid_predict.forecast.skill import SHORTEST, Skill
from hybrid_predict.updates.budget import weak

NO_SKILL = "no predicted steps where they were planned: forecasts have not shown enough skill"
"""Event of the ledger: planned predicted steps are not made for lack of skill."""

TOO_SHORT = (
    "no predicted steps where they were planned: forecasts have skill, but predicted steps would "
    f"be shorter than {SHORTEST:g} of the drift"
)
"""Event of the ledger: planned predicted steps are not made because they would hardly move."""

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
@dataclass(frozen=True)
class Gate:
    """Result of the gate: which groups must not be predicted at the moment.

    Args:
        blocked: Parameter names of each group that must not be predicted.
        closed: Whether every group that has a predictor is blocked.
        weak: Whether most matrices have weak corrections.
        short: Whether predicted steps lack nothing but length.
        few: Whether all forecasts together would move too few of the trained weights.
    """

    blocked: frozenset[tuple[str, ...]] = frozenset()
    closed: bool = False
    weak: bool = False
    short: bool = False
    few: bool = False

    @property
    def locked(self) -> bool:
        """Whether the gate stays closed: the budget is fixed after the first full step."""
        return self.closed and self.weak

    @property
    def reason(self) -> str:
        """Reason for the closed gate, as an event for the ledger."""
        if self.weak:
            return TOO_EXPENSIVE
        if self.few:
            return TOO_FEW
        return TOO_SHORT if self.short else NO_SKILL


def make_gate(
    groups: Sequence[TensorGroup], skills: Mapping[str, Skill], block: int | None, trained: int
) -> Gate:
    """Block groups whose forecasts lack skill, and all gated groups if corrections are weak.

    If most of the weights that need skill lack it, all gated groups are blocked, and also if the
    rest is few of the trained weights. Otherwise a predicted step would replace a full step and
    move only few weights.

    Args:
        groups: All groups that are corrected or predicted.
        skills: Skill by kind.
        block: Number of matrix rows that corrected updates treat together, or None for all.
        trained: Number of trained weights outside embeddings.
    """
    corrected = [p.shape for g in groups if g.plan.update for p in g.parameters]
    too_weak = weak(corrected, block)
    predicted = [g for g in groups if g.plan.predictor is not None]
    gated = [g for g in predicted if g.plan.predictor and g.plan.predictor.gated]
    known = [(g, skills.get(g.plan.kind, Skill())) for g in gated]
    able = [g for g, skill in known if skill.enough]
    foreseen = [g for g, skill in known if skill.lower > 0.0]
    free = _numel(g for g in predicted if g not in gated)

    def suffice(chosen: Sequence[TensorGroup]) -> bool:
        return _are_most(chosen, gated) and not too_few(_numel(chosen) + free, trained)

    if too_weak or not suffice(able):
        able = []
    blocked = frozenset(g.names for g in gated if g not in able)
    closed = bool(predicted) and len(blocked) == len(predicted)
    few = too_few(_numel(predicted), trained)
    return Gate(blocked, closed, too_weak, closed and suffice(foreseen), few)


def _are_most(chosen: Sequence[TensorGroup], gated: Sequence[TensorGroup]) -> bool:
    """Whether the chosen groups have most of the weights that need skill."""
    return 2 * _numel(chosen) >= _numel(gated)


def too_few(moved: int, trained: int) -> bool:
    """Whether a predicted step would move too few of the trained weights outside embeddings."""
    return LEAST_MOVED * moved < trained


def _numel(groups: Iterable[TensorGroup]) -> int:
    return sum(p.numel() for group in groups for p in group.parameters)
