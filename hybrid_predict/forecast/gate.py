"""Which predicted steps may be made: where forecasts have skill, and corrections are not weak."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hybrid_predict.forecast.group import TensorGroup
from hybrid_predict.forecast.skill import Skill
from hybrid_predict.tensors.base import as_matrix

NO_SKILL = "no predicted steps where they were planned: forecasts have not shown enough skill"
"""Why planned predicted steps are not made, as the ledger counts it."""

TOO_EXPENSIVE = (
    "no predicted steps where they were planned: max_overhead leaves corrected updates too weak to "
    "make up for them; larger batches or a larger max_overhead help"
)
"""Why planned predicted steps are not made where a budget of operations is small."""

LEAST_PART = 8
"""Corrected updates treat at least one in so many rows of a matrix together, or are weak: with
fewer, two thirds of the full steps end worse than all of them (decision 19)."""


@dataclass(frozen=True)
class Gate:
    """What may not be predicted for the time being.

    Args:
        blocked: Names of the tensors of each group that is not predicted.
        closed: Whether no group is predicted though some could be.
        weak: Whether most matrices have weak corrections.
    """

    blocked: frozenset[tuple[str, ...]] = frozenset()
    closed: bool = False
    weak: bool = False

    @property
    def reason(self) -> str:
        """Why it is closed."""
        return TOO_EXPENSIVE if self.weak else NO_SKILL


def make_gate(
    groups: Sequence[TensorGroup], skills: Mapping[str, Skill], block: int | None
) -> Gate:
    """Find the groups whose forecasts lack skill, or corrections that make up for their errors.

    Where most of the weights that need skill lack it, none of them is predicted: a predicted step
    of the others alone would take a full step's place and move little.

    Args:
        groups: All that is corrected or predicted.
        skills: Skill by kind.
        block: Rows of a matrix that corrected updates treat together, None for all.
    """
    weak = _weak([p for g in groups if g.plan.update for p in g.parameters], block or math.inf)
    predicted = [g for g in groups if g.plan.predictor is not None]
    gated = [g for g in predicted if g.plan.predictor and g.plan.predictor.gated]
    skilled = [g for g in gated if (skill := skills.get(g.plan.kind)) is not None and skill.enough]
    if weak or 2 * _numel(skilled) < _numel(gated):
        skilled = []
    blocked = frozenset(g.names for g in gated if g not in skilled)
    return Gate(blocked, bool(predicted) and len(blocked) == len(predicted), weak)


def _weak(corrected: Sequence[Tensor], block: float) -> bool:
    few = sum(p.numel() for p in corrected if LEAST_PART * block < min(as_matrix(p.shape)))
    return 2 * few > sum(p.numel() for p in corrected)


def _numel(groups: Iterable[TensorGroup]) -> int:
    return sum(p.numel() for group in groups for p in group.parameters)
