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
        resting: Of these, the groups that rest: that are new, did not move yet, or were not updated
            in one of the last full steps.
        closed: Whether every judged group is gated and blocked.
        uncorrected: Whether the budget allows no corrections.
        reason: Reason for blocking all judged groups, as an event for the ledger.
    """

    judged: Sequence[Group] = ()
    blocked: frozenset[tuple[str, ...]] = frozenset()
    resting: frozenset[tuple[str, ...]] = frozenset()
    closed: bool = False
    uncorrected: bool = False
    reason: str = ""

    @property
    def gated(self) -> bool:
        """Whether predicted steps are possible, and need skill."""
        predictors = [group.treatment.predictor for group in self.judged]
        return bool(predictors) and all(p is not None and p.gated for p in predictors)

    @property
    def blocks_all(self) -> bool:
        """Whether it is closed, or every judged group is blocked, gated or not."""
        blocked = [group.names in self.blocked for group in self.judged]
        return self.closed or (bool(blocked) and all(blocked))

    @property
    def locked(self) -> bool:
        """Whether nothing can be done: the budget is fixed after the first full step."""
        return self.uncorrected and (self.closed or not self.judged)


def make_gate(
    predicted: Sequence[Group],
    scores: Scores,
    deciding: Collection[str],
    trained: int,
    too_expensive: str,
) -> Gate:
    """Block groups that rest, and gated ones that lack skill or do not last.

    If the groups left have too few weights, or nothing is corrected, all gated ones are blocked.

    Args:
        predicted: The groups with a predictor.
        scores: What closed windows have shown.
        deciding: Kinds that predicted steps are made for; the others move while forecasts last.
        trained: Number of trained weights outside embeddings.
        too_expensive: Why the budget allows no corrections; empty if it does.
    """
    still = resting(predicted)
    members = [_part(group, deciding) for group in predicted]

    def parts(*conditions: Sequence[bool]) -> list[rules.Part]:
        each = zip(members, zip(*conditions, strict=True), strict=True)
        return [member._replace(ready=all(met)) for member, met in each]

    skills = [scores.skills.get(group.treatment.kind, Skill()) for group in predicted]
    pairs = list(zip(members, skills, strict=True))
    skilled = [not member.gated or bool(enough(skill)) for member, skill in pairs]
    forecasts = zip(members, map(scores.advance, predicted), strict=True)
    lasting = [member.decides or advance > 0.0 for member, advance in forecasts]
    updated = [group.names not in still for group in predicted]
    now = parts(skilled, lasting, updated)
    judged = list(compress(predicted, rules.judged(now, trained)))
    opened = not too_expensive and rules.suffice(now, trained)
    each = zip(predicted, now, strict=True)
    unfit = frozenset(g.names for g, p in each if p.gated and not (p.ready and opened))
    closed = bool(predicted) and all(group.names in unfit for group in judged)
    if too_expensive:
        reason = too_expensive
    elif not judged:
        reason = rules.NOTHING
    elif rules.too_few(now, trained):
        reason = rules.TOO_FEW
    elif rules.suffice(parts(skilled, lasting), trained):
        reason = rules.NOT_UPDATED
    elif rules.suffice(parts(skilled), trained):
        reason = rules.NOT_LASTING
    else:
        positive = [not member.gated or lower(skill) > 0.0 for member, skill in pairs]
        long = rules.suffice(parts(positive), trained)
        reason = rules.TOO_SHORT if long else rules.NO_SKILL
    return Gate(judged, unfit | still, still, closed, bool(too_expensive), reason)


def resting(predicted: Sequence[Group]) -> frozenset[tuple[str, ...]]:
    """Return the parameter names of each group that rests."""
    return frozenset(group.names for group in predicted if group.resting)


def _part(group: Group, deciding: Collection[str]) -> rules.Part:
    """The group as the rules of the gate see it, before it is ready."""
    kind, predictor = group.treatment.kind, group.treatment.predictor
    gated = predictor is not None and predictor.gated
    return rules.Part(group.size, gated, False, kind == "embedding", kind in deciding)
