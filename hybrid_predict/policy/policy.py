"""The policy of a run: its schedule, limits of its loss, and whether it overfits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.config import HybridConfig
from hybrid_predict.policy import schedule as schedules
from hybrid_predict.policy.limits import RISEN, Baseline, Limits
from hybrid_predict.policy.overfitting import Overfitting

if TYPE_CHECKING:
    from hybrid_predict.policy.confidence import Window
    from hybrid_predict.policy.predicting import Part, PredictingPolicy
    from hybrid_predict.policy.verdict import Slopes

UNPREDICTED = "no predicted steps"
"""Beginning of the events that say why none are made."""

TOO_FEW = (
    f"{UNPREDICTED}: they would move less than a quarter of the trained weights outside "
    "embeddings; if you chose predictors, name more kinds"
)
NOTHING = (
    "there is nothing to predict: no trained parameter is a hidden matrix, or of a kind that you "
    "named in predictors"
)
"""Events of the ledger: why a run never makes predicted steps."""

INTERRUPTED = "an error interrupted the full step"
"""Reason for undoing predicted steps."""

Key = tuple[str, int]
"""Kind of parameters, and number of their optimizer."""


@final
@dataclass(frozen=True)
class Outcome:
    """What a full step has shown, as far as it was read."""

    step: int  # number of the full step, from 1
    norms: list[float]  # of each optimizer's gradients; nan where not measured
    loss: float | None = None  # mean loss; None if it is unknown
    warmup: bool = False  # whether it belongs to the warm-up
    predicted: int = 0  # number of predicted steps right before it
    held: str = ""  # why these are undone; empty if they stand
    slopes: Slopes | None = None  # None without predicted steps
    ends: Mapping[Key, float] | None = None  # slope of each kind's predicted movement at its end
    windows: Sequence[tuple[Key, Window]] = ()  # that were closed, one of each group


def make_policy(config: HybridConfig, optimizers: int = 1) -> Policy:
    """Return the policy of a run; one without predictors imports nothing about predicted steps."""
    if not config.active_predictors:
        return Policy(config, optimizers)
    from hybrid_predict.policy.predicting import PredictingPolicy

    return PredictingPolicy(config, optimizers)


class Policy:
    """Decides, from what full steps have shown, whether a run goes on as it is."""

    def __init__(self, config: HybridConfig, optimizers: int = 1) -> None:
        self.schedule = schedules.schedule(config)
        self.limits = Limits([Baseline() for _ in range(optimizers)])
        self.overfitting = Overfitting()
        self.judged: list[Part] = []  # parts without which no predicted step is made
        self.locked = False  # whether nothing can be done: only the first full step can tell
        self._config = config
        self._until_skill: int | None = None  # steps until skill can be known

    @property
    def predicting(self) -> PredictingPolicy | None:
        """The policy itself, if it decides about predicted steps."""
        return None

    def follow(self, parts: Iterable[Part], trained: int, *, affordable: bool = True) -> None:
        """Decide about these parts from now on.

        ``trained`` is the number of trained weights outside embeddings, and ``affordable`` whether
        the budget allows corrections.
        """
        self.locked = not affordable

    def set_length(self, steps: int) -> bool:
        """Plan a run of another length; return whether it is another one."""
        changed = self.schedule.total != steps
        config = self._config.with_length(steps)
        self.schedule = schedules.schedule(config, self._until_skill or 0)
        return changed

    @property
    def overfits(self) -> bool:
        """Whether the run overfits, and something is to be done about it."""
        return self.overfitting.found and self._config.on_overfit != "ignore"

    @property
    def futile(self) -> str:
        """Why the plug-in cannot help in the rest of the run; empty if it may."""
        return RISEN if self.limits.risen else ""

    def validate(self, value: float) -> None:
        """Take in a validation of the run, of which smaller values are better."""
        if not (self.overfitting.found and self._config.on_overfit == "stop"):  # else it has ended
            self.overfitting.add(value, self.limits.mean)

    def learn(self, seen: Outcome) -> dict[str, int]:
        """Learn from a full step; return events for the ledger, with their logging levels."""
        loss = seen.loss if self._config.watch_loss else None
        self.limits.learn(loss, seen.norms, warmup=seen.warmup)
        return {}

    def forget(self) -> None:
        """Forget what is known of validations."""
        self.overfitting = Overfitting()

    def state_dict(self) -> dict[str, Any]:
        """Return everything as primitives."""
        known = {"limits": asdict(self.limits), "overfitting": asdict(self.overfitting)}
        return {**known, "forecasts": None}

    def load_state_dict(self, state: Mapping[str, Any], dropped: Collection[str] = ()) -> bool:
        """Load a :meth:`state_dict`, but for ``dropped`` kinds; return whether limits fitted."""
        self.forget()
        load(self.overfitting, state["overfitting"])
        if len(state["limits"]["norms"]) != len(self.limits.norms):
            return False
        load(self.limits, state["limits"])
        if not self._config.watch_loss:
            self.limits.forget_loss()
        return True


def load(known: Any, state: Mapping[str, Any]) -> None:
    """Set the fields of a dataclass to saved values, of which none may be missing."""
    for name in [each.name for each in fields(known)]:
        value = getattr(known, name)
        if is_dataclass(value):
            load(value, state[name])
        elif isinstance(value, list):
            for each, saved in zip(value, state[name], strict=True):
                load(each, saved)
        else:
            named = getattr(value, "_make", None)
            setattr(known, name, named(state[name]) if named else state[name])
