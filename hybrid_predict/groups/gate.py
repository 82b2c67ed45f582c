"""The gate: which groups of tensors must not be predicted at the moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import final

from hybrid_predict.groups.group import Group
from hybrid_predict.groups.scores import Scores
from hybrid_predict.rules import gate as rules
from hybrid_predict.rules.skill import Skill, enough, lower


@final
@dataclass(frozen=True)
class Gate:
    """Which groups must not be predicted at the moment.

    Args:
        judged: The groups without which no predicted step is made.
        blocked: Parameter names of each group that must not be predicted.
        closed: Whether every judged group is blocked.
        weak: Whether most matrices have weak corrections.
        reason: Reason for a closed gate, as an event for the ledger.
    """

    judged: Sequence[Group] = ()
    blocked: frozenset[tuple[str, ...]] = frozenset()
    closed: bool = False
    weak: bool = False
    reason: str = ""

    @property
    def gated(self) -> bool:
        """Whether predicted steps are possible, and need skill."""
        predictors = [group.treatment.predictor for group in self.judged]
        return bool(predictors) and all(p is not None and p.gated for p in predictors)

    @property
    def locked(self) -> bool:
        """Whether the gate stays closed: the budget is fixed after the first full step."""
        return self.closed and self.weak


def make_gate(
    predicted: Sequence[Group],
    scores: Scores,
    always: Collection[str],
    trained: int,
    too_weak: str,
) -> Gate:
    """Block groups whose forecasts lack skill, and all gated groups if corrections are weak.

    Args:
        predicted: The groups with a predictor.
        scores: What closed windows have shown.
        always: Kinds that every predicted step moves; the others only move while forecasts last.
        trained: Number of trained weights outside embeddings.
        too_weak: Why most matrices have weak corrections; empty if they have not.
    """

    def parts(ready: Sequence[bool]) -> list[rules.Part]:
        return [_part(group, able, always) for group, able in zip(predicted, ready, strict=True)]

    skills = [scores.skills.get(group.treatment.kind, Skill()) for group in predicted]
    skilled = [bool(enough(skill)) for skill in skills]
    lasting = [group.treatment.kind in always or scores.advance(group) > 0.0 for group in predicted]
    now = parts([able and lasts for able, lasts in zip(skilled, lasting, strict=True)])
    judged = list(compress(predicted, rules.judged(now, trained)))
    opened = not too_weak and rules.suffice(now, trained)
    each = zip(predicted, now, strict=True)
    blocked = frozenset(g.names for g, p in each if p.gated and not (p.ready and opened))
    closed = bool(predicted) and all(group.names in blocked for group in judged)
    if not judged:
        reason = rules.NOTHING
    elif too_weak:
        reason = too_weak
    elif rules.too_few(now, trained):
        reason = rules.TOO_FEW
    elif rules.suffice(parts(skilled), trained):
        reason = rules.NOT_LASTING
    else:
        long = rules.suffice(parts([lower(skill) > 0.0 for skill in skills]), trained)
        reason = rules.TOO_SHORT if long else rules.NO_SKILL
    return Gate(judged, blocked, closed, bool(too_weak), reason)


def _part(group: Group, ready: bool, always: Collection[str]) -> rules.Part:
    """The group as the rules of the gate see it."""
    treatment = group.treatment
    gated = treatment.predictor is not None and treatment.predictor.gated
    table = treatment.kind == "embedding"
    return rules.Part(group.size, gated, ready, table, treatment.kind in always)
