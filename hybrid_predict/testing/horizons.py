"""The contract of a horizon rule: pure, never negative, and shorter after bad news."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from hybrid_predict.errors import ContractError
from hybrid_predict.horizons import AbstractHorizon

KINDS = ("hidden", "vector", "hidden")
REJECTION = "reject"

Event = str | Sequence[float]
"""What a rule is told: :data:`REJECTION`, or an alignment per tensor."""


def check_horizon(rule: AbstractHorizon) -> None:
    """Check a horizon rule on random courses of alignments and rejections.

    Args:
        rule: The rule.

    Raises:
        ContractError: If it is impure, gives a horizon that is negative or not finite, or answers
            a rejection or a worse alignment with a longer horizon.

    Example:
        >>> from hybrid_predict import AlignmentHorizon
        >>> check_horizon(AlignmentHorizon())
    """
    for seed in range(20):
        draw = random.Random(seed)
        events: list[Event] = [
            REJECTION if draw.random() < 0.2 else [draw.uniform(-1, 1) for _ in KINDS]
            for _ in range(draw.randrange(30))
        ]
        check_course(rule, events, [draw.uniform(-1, 1) for _ in KINDS], draw.uniform(0, 2))


def check_course(
    rule: AbstractHorizon, events: Sequence[Event], low: Sequence[float], rise: float
) -> list[list[float]]:
    """Check a rule on one course.

    Args:
        rule: The rule.
        events: What it is told.
        low: Alignments that come after it.
        rise: How much higher others are that it is compared with.

    Returns:
        The horizons after every event.

    Raises:
        ContractError: If the rule breaks a promise.
    """
    name = type(rule).__name__
    states = run(rule, events)
    if run(rule, events) != states:
        raise ContractError(name, "the same states for the same events")
    horizons = [rule.horizons(state) for state in states]
    for values in horizons:
        if len(values) != len(KINDS) or not all(math.isfinite(h) and h >= 0 for h in values):
            raise ContractError(name, f"{len(KINDS)} finite horizons, at least 0", values)
    state = states[-1]
    rejected = rule.horizons(rule.reject(state, KINDS))
    if any(a > b for a, b in zip(rejected, horizons[-1], strict=True)):
        raise ContractError(name, "no longer horizon after a rejection", rejected)
    high = [min(1.0, c + rise) for c in low]
    worse, better = (rule.horizons(rule.update(state, c, KINDS)) for c in (low, high))
    if any(w > b for w, b in zip(worse, better, strict=True)):
        raise ContractError(name, "no shorter horizon after a better alignment", (worse, better))
    return horizons


def run(rule: AbstractHorizon, events: Sequence[Event]) -> list[list[float]]:
    """The states of a rule, before the first event and after each.

    Raises:
        ContractError: If it changes its argument.
    """
    states = [list(rule.init(KINDS))]
    for event in events:
        before = list(states[-1])
        if isinstance(event, str):
            states.append(list(rule.reject(states[-1], KINDS)))
        else:
            states.append(list(rule.update(states[-1], event, KINDS)))
        if states[-2] != before:
            raise ContractError(type(rule).__name__, "arguments that stay as they are")
    assert all(len(a) == len(b) for a, b in pairwise(states))
    return states
