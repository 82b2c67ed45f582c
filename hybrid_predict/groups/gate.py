"""The gate: which groups of tensors must not be predicted at the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from hybrid_predict.groups.group import Group
from hybrid_predict.rules import gate as rules
from hybrid_predict.rules.skill import Skill, enough, lower


@final
@dataclass(frozen=True)
class Gate:
    """Which groups must not be predicted at the moment.

    Args:
        blocked: Parameter names of each group that must not be predicted.
        closed: Whether every group is blocked without which no predicted step is made.
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
    predicted: Sequence[Group],
    judged: Sequence[Group],
    skills: Mapping[str, Skill],
    trained: int,
    too_weak: str,
) -> Gate:
    """Block groups whose forecasts lack skill, and all gated groups if corrections are weak.

    Args:
        predicted: The groups with a predictor.
        judged: Those of them without which no predicted step is made.
        skills: Skill of the forecasts by kind.
        trained: Number of trained weights outside embeddings.
        too_weak: Why most matrices have weak corrections; empty if they have not.
    """
    skill = {group.names: skills.get(group.treatment.kind, Skill()) for group in predicted}
    parts = {group.names: _part(group, enough(skill[group.names])) for group in predicted}
    able = [parts[group.names] for group in judged]
    skilled = [_part(group, lower(skill[group.names]) > 0.0) for group in judged]
    opened = not too_weak and rules.suffice(able, trained)
    each = parts.items()
    blocked = frozenset(names for names, p in each if p.gated and not (p.ready and opened))
    closed = bool(predicted) and all(group.names in blocked for group in judged)
    if not judged:
        reason = rules.NOTHING
    elif too_weak:
        reason = too_weak
    elif rules.too_few(able, trained):
        reason = rules.TOO_FEW
    else:
        short = closed and rules.suffice(skilled, trained)
        reason = rules.TOO_SHORT if short else rules.NO_SKILL
    return Gate(blocked, closed, bool(too_weak), reason)


def _part(group: Group, ready: Any) -> rules.Part:
    """The group as the rules of the gate see it."""
    predictor, table = group.treatment.predictor, group.treatment.kind == "embedding"
    return rules.Part(group.size, predictor is not None and predictor.gated, bool(ready), table)
