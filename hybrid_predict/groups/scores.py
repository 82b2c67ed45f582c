"""What closed windows have shown: the skill of forecasts, and how far they lead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, final

from hybrid_predict.forecast.window import Reading, reading
from hybrid_predict.groups.group import Group
from hybrid_predict.rules import pace as rules
from hybrid_predict.rules.pace import Lagged, Pace, follow, lag, lasting, length, weigh
from hybrid_predict.rules.skill import Skill, add_window, known
from hybrid_predict.rules.verdict import Slopes
from hybrid_predict.torch.optimizer import Options

T = TypeVar("T")


@final
class Scores:
    """The running results of all closed windows.

    Args:
        adaptive: Whether they decide how far predicted steps move the tensors.
        planned: Whether the number of predicted steps is planned.

    Attributes:
        skills: Skill of the forecasts by kind.
        skill: Skill over all kinds.
        paces: How far predicted steps move the tensors, by kind and number of their optimizer;
            empty unless ``adaptive``.
        lengths: Length of the next forecast in drifts, by the same keys.
    """

    def __init__(self, *, adaptive: bool, planned: bool) -> None:
        self.skills: dict[str, Skill] = {}
        self.skill = Skill()
        self.paces: dict[tuple[str, int], Pace] = {}
        self.lengths: dict[tuple[str, int], float] = {}
        self.adaptive, self._planned = adaptive, planned
        self._latest: dict[tuple[str, ...], Reading] = {}

    @property
    def known(self) -> bool:
        """Whether the skill of any kind is known."""
        return any(map(known, self.skills.values()))

    @property
    def lasting(self) -> bool:
        """Whether the forecasts of any kind have lasted in the last windows."""
        return bool(lasting(self.paces.values()))

    @property
    def summary(self) -> dict[str, dict[str, float | int]]:
        """Numbers that are shown to a user, by kind."""
        shown = {kind: skill.summary() for kind, skill in self.skills.items()}
        for (kind, _), pace in sorted(self.paces.items(), key=lambda item: item[1].advance):
            shown[kind].update(pace.summary())  # of several optimizers, the farthest one
        return shown

    def advance(self, group: Group) -> float:
        """Return how far predicted steps move a group per full step, in drifts."""
        return float(self.paces.get(_key(group), Pace()).advance)

    def forecasts(self, group: Group, advance: float, number: float, *, least: float) -> float:
        """Return how many forecasts a predicted step moves a group.

        Args:
            group: The group.
            advance: Its advance.
            number: Number of predicted steps per full step.
            least: Smallest number of forecasts.
        """
        own = self.lengths.get(_key(group), 0.0)
        return max(least, length(advance, number) / own if own > 0.0 else 0.0)

    def weigh(
        self,
        slopes: Slopes,
        ends: Mapping[str, float],
        predicted: int,
        groups: Sequence[Group],
        *,
        refuted: bool,
    ) -> None:
        """Take in the slopes of predicted steps that stand; see :func:`rules.pace.weigh`.

        Args:
            slopes: Those over all tensors.
            ends: Slope of each tensor's movement where it ends, by name.
            predicted: Number of predicted steps.
            groups: The groups that have a predictor now.
            refuted: Whether a test over many verdicts has failed.
        """
        own: dict[tuple[str, int], float] = defaultdict(float)
        for group in groups:
            own[_key(group)] += sum(ends.get(name, 0.0) for name in group.names)
        for key, pace in self.paces.items():
            self.paces[key] = weigh(pace, slopes, own[key], predicted, refuted)

    def renew(self, groups: Sequence[Group], options: Mapping[int, Options]) -> bool:
        """Begin advances of groups anew that were measured at far smaller rates than those now.

        Return whether one of them did. A learning rate on a device is read, which waits for it.
        """
        rates: dict[tuple[str, int], float] = defaultdict(float)
        for group in groups:
            rates[_key(group)] = max(rates[_key(group)], float(group.rate(options)))
        before = self.paces
        self.paces = {key: rules.renewed(pace, rates[key]) for key, pace in before.items()}
        return any(pace.advance > self.paces[key].advance for key, pace in before.items())

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
        for kind in dict.fromkeys(one.kind for one in readings):  # alike on every rank
            pooled = [one.pooled(squares[one.names]) for one in readings if one.kind == kind]
            self.skills[kind] = add_window(self.skills.get(kind, Skill()), _summed(pooled))
        followed = [one for one in readings if self.adaptive and one.names in groups]
        for key in dict.fromkeys((one.kind, one.owner) for one in followed):
            mine = [one for one in followed if (one.kind, one.owner) == key]
            lagged = [self._lagged(groups[one.names], one) for one in mine]
            rate = max(one.rate for one in mine)
            before = rules.renewed(self.paces.get(key, Pace()), rate)
            after = follow(before, _summed(lagged), planned=self._planned)
            self.paces[key] = rules.measured_at(rate, before, after)
            own = Skill(length=self.lengths.get(key, 0.0))
            window = _summed([one.pooled(squares[one.names]) for one in mine])
            self.lengths[key] = float(add_window(own, window).length)
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
            "paces": [[*key, self.lengths[key], *pace] for key, pace in self.paces.items()],
            "latest": [one.packed() for one in self._latest.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of :meth:`state_dict`."""
        self.skill = Skill(*state["skill"])
        self.skills = {kind: Skill(*numbers) for kind, numbers in state["skills"].items()}
        self.paces = {}
        self.lengths = {}
        for kind, owner, own, *numbers in state["paces"] if self.adaptive else []:
            self.paces[kind, owner] = Pace(*numbers)
            self.lengths[kind, owner] = own
        latest = [reading(tag, values) for tag, values in state["latest"]]
        self._latest = {one.names: one for one in latest}


def _key(group: Group) -> tuple[str, int]:
    return group.treatment.kind, group.treatment.owner


def _summed(windows: Sequence[T]) -> T:
    """Return the sums of the fields of named tuples."""
    parts: Any = windows
    return type(windows[0])(*map(sum, zip(*parts, strict=True)))
