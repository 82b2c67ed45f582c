"""The gate: which groups of tensors must not be predicted at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from hybrid_predict.groups.group import Group
from hybrid_predict.rules import gate as rules
from hybrid_predict.rules.skill import Skill, enough, lower


@final
@dataclass(frozen=True)
class Gate:
    """Which groups must not be predicted at the moment.

    Args:
        blocked: Parameter names of each group that must not be predicted.
        closed: Whether every group that has a predictor is blocked.
        weak: Whether most matrices have weak corrections.
        reason: Reason for a closed gate, as an event for the ledger.
    """

    blocked: frozenset[tuple[str, ...]] = frozenset()
    closed: bool = False
    weak: bool = False
    reason: str = ""

    @property
    def locked(self) -> bool:
        """Whether the gate stays closed: the budget is fixed after the first full step."""
        return self.closed and self.weak


def make_gate(
    predicted: Sequence[Group], skills: Mapping[str, Skill], trained: int, too_weak: str
) -> Gate:
    """Block groups whose forecasts lack skill, and all gated groups if corrections are weak.

    Args:
        predicted: The groups with a predictor.
        skills: Skill of the forecasts by kind.
        trained: Number of trained weights outside embeddings.
        too_weak: Why most matrices have weak corrections; empty if they have not.
    """
    own = [skills.get(group.treatment.kind, Skill()) for group in predicted]
    able = _parts(predicted, [bool(enough(skill)) for skill in own])
    skilled = _parts(predicted, [bool(lower(skill) > 0.0) for skill in own])
    opened = not too_weak and rules.suffice(able, trained)
    pairs = zip(predicted, able, strict=True)
    blocked = frozenset(g.names for g, part in pairs if part.gated and not (part.ready and opened))
    closed = bool(predicted) and len(blocked) == len(predicted)
    if too_weak:
        reason = too_weak
    elif rules.too_few(able, trained):
        reason = rules.TOO_FEW
    else:
        short = closed and rules.suffice(skilled, trained)
        reason = rules.TOO_SHORT if short else rules.NO_SKILL
    return Gate(blocked, closed, bool(too_weak), reason)


def _parts(predicted: Sequence[Group], ready: Sequence[bool]) -> list[rules.Part]:
    """The groups as the gate sees them."""
    return [
        rules.Part(
            group.size,
            group.treatment.predictor is not None and group.treatment.predictor.gated,
            now,
            group.treatment.kind == "embedding",
        )
        for group, now in zip(predicted, ready, strict=True)
    ]
