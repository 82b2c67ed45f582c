"""What closed windows have shown: the skill of forecasts, and how far they lead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, final

from hybrid_predict.forecast.window import Reading, reading
from hybrid_predict.group import Group
from hybrid_predict.rules.pace import Lagged, Pace, Worth, follow, lag
from hybrid_predict.rules.skill import Skill, add_window, known
from hybrid_predict.rules.verdict import Slopes
from hybrid_predict.saved import checked_pace, checked_skill, checked_worth

T = TypeVar("T")


@final
class Scores:
    """The running results of all closed windows.

    Attributes:
        skills: Skill of the forecasts by kind.
        skill: Skill over all kinds.
        paces: How far predicted steps move each kind.
    """

    def __init__(self) -> None:
        self.skills: dict[str, Skill] = {}
        self.skill = Skill()
        self.paces: dict[str, Pace] = {}
        self._worth = Worth()
        self._latest: dict[tuple[str, ...], Reading] = {}

    @property
    def known(self) -> bool:
        """Whether the skill of any kind is known."""
        return any(map(known, self.skills.values()))

    @property
    def summary(self) -> dict[str, dict[str, float | int]]:
        """Numbers that are shown to a user, by kind."""
        return {
            kind: {**skill.summary(), **self.paces.get(kind, Pace()).summary()}
            for kind, skill in self.skills.items()
        }

    def weigh(self, slopes: Slopes, predicted: int) -> None:
        """Take in the slopes of predicted steps that stand.

        Args:
            slopes: What the verifying step has measured.
            predicted: Number of predicted steps before it.
        """
        if not all(map(math.isfinite, slopes)):
            return
        now = Worth(slopes.product, slopes.own_product, float(predicted), 1.0)
        self._worth = _summed([self._worth, now])

    def add(self, readings: Sequence[Reading], predicted: Sequence[Group]) -> None:
        """Update skill, paces and predictors from windows that were closed together.

        Args:
            readings: What the windows measured.
            predicted: The groups that have a predictor now.
        """
        groups = {group.names: group for group in predicted}
        squares = {
            one.names: groups[one.names].fit(one) if one.names in groups else one.square
            for one in readings
        }
        worth, self._worth = self._worth.number, Worth()
        for kind in dict.fromkeys(one.kind for one in readings):  # alike on every rank
            closed = [one for one in readings if one.kind == kind]
            pooled = [one.pooled(squares[one.names]) for one in closed]
            self.skills[kind] = add_window(self.skills.get(kind, Skill()), _summed(pooled))
            lagged = [self._lagged(groups[one.names], one) for one in closed if one.names in groups]
            if lagged:
                self.paces[kind] = follow(self.paces.get(kind, Pace()), _summed(lagged), worth)
        latest = {names: one for names, one in self._latest.items() if names in groups}
        self._latest = {**latest, **{one.names: one for one in readings}}
        pooled = [one.pooled(one.square) for one in self._latest.values()]
        self.skill = add_window(self.skill, _summed(pooled))

    def _lagged(self, group: Group, now: Reading) -> Lagged:
        """Return the products of the forecast of a group's last window with this window."""
        before = self._latest.get(now.names)
        if before is None or not now.late.any():  # another window stands before this one
            return Lagged()
        late, window = float(now.late.sum()), before.pooled(before.square)
        return lag(group.decay, before.steps, now.steps, late, window)

    def state_dict(self) -> dict[str, Any]:
        """Return everything as primitives."""
        return {
            "skill": list(self.skill),
            "skills": {kind: list(skill) for kind, skill in self.skills.items()},
            "paces": {kind: list(pace) for kind, pace in self.paces.items()},
            "worth": list(self._worth),
            "latest": [one.packed() for one in self._latest.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of :meth:`state_dict`.

        Raises:
            CheckpointError: If a number is missing or cannot be.
        """
        self.skill = checked_skill(state["skill"])
        self.skills = {kind: checked_skill(numbers) for kind, numbers in state["skills"].items()}
        self.paces = {kind: checked_pace(numbers) for kind, numbers in state["paces"].items()}
        self._worth = checked_worth(state["worth"])
        latest = [reading(tag, values) for tag, values in state["latest"]]
        self._latest = {one.names: one for one in latest}


def _summed(windows: Sequence[T]) -> T:
    """Return the sums of the fields of named tuples."""
    parts: Any = windows
    return type(windows[0])(*map(sum, zip(*parts, strict=True)))
