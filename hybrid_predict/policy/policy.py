"""The policy of a run: whether predicted steps are made, how many, and how far each kind moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from hybrid_predict.config import KINDS, MOST_PREDICTED, HybridConfig
from hybrid_predict.policy import schedule as schedules
from hybrid_predict.policy.confidence import (
    RISE,
    SHORTEST,
    Confidence,
    Skill,
    Window,
    steps_until_known,
)
from hybrid_predict.policy.limits import EXHAUSTED, IDLE, RISEN, Limits
from hybrid_predict.policy.saving import loaded
from hybrid_predict.policy.verdict import (
    ENDED,
    QUIET,
    RESTARTED,
    Evidence,
    Slopes,
    cause,
    loss_cause,
)

NO_SKILL = "no predicted steps while forecasts have not shown enough skill"
TOO_SHORT = (
    "no predicted steps while they would be too short: forecasts have skill, but lead less than "
    f"{SHORTEST:g} of the way that the weights move in an average full step"
)
UNPREDICTED = "no predicted steps: "
TOO_EXPENSIVE = (
    f"{UNPREDICTED}batches are too small for layers this wide, so max_overhead allows no corrected "
    "updates"
)
NO_BUDGET = f"{UNPREDICTED}max_overhead=0 allows no corrected updates"
TOO_FEW = (
    "no predicted steps: they would move less than a quarter of the trained weights outside "
    "embeddings; if you chose predictors, name more kinds"
)
NOT_LASTING = "no predicted steps while forecasts do not last"
NOT_UPDATED = "no predicted steps while too many weights are not updated in every full step"
"""Events of the ledger. Forecasts last where enough weights have an advance."""

_INSTEAD = "full steps took the place of some predicted steps, while "
AFTERWARDS = {
    NO_SKILL: f"{_INSTEAD}forecasts had not shown enough skill",
    TOO_SHORT: f"{_INSTEAD}forecasts were too short: less than {SHORTEST:g} of the way that the "
    "weights moved in an average full step",
    NOT_LASTING: f"{_INSTEAD}forecasts did not last",
    NOT_UPDATED: f"{_INSTEAD}too many weights were not updated in every full step",
}
"""What these events say of a run that has ended, and made predicted steps at other times."""

NOTHING = (
    "there is nothing to predict: no trained parameter is a hidden matrix, or of a kind that you "
    "named in predictors"
)
"""Event of the ledger: predicted steps are planned, but there is nothing to forecast."""

BEGUN_ANEW = (
    f"forecasts began anew: the learning rate rose to more than {RISE:g} times that at which they "
    "were measured"
)
"""Event of the ledger."""

LEAST_MOVED = 4
"""Predicted steps have to move at least one in this many trained weights: they take the place of
full steps, in which all would learn. Tables do not count, of which a full step moves few rows."""

LEAST = 0.02  # smallest number of predicted steps per full step; fewer are none

Key = tuple[str, int]
"""Kind of parameters, and number of their optimizer."""


@final
@dataclass(frozen=True)
class Part:
    """A group of tensors that has a predictor, as the policy sees it.

    Args:
        kind: Their kind.
        optimizer: Number of their optimizer.
        size: Number of weights.
        window: Number of displacements in a window.
        decay: Decay of the average that moves the weights, in [0, 1).
        gated: Whether its predicted steps need skill.
        fits: Whether the length of its forecasts is fitted.
        resting: Whether it is new, did not move yet, or was not updated in one of the last full
            steps.
    """

    kind: str
    optimizer: int
    size: int
    window: int
    decay: float = 0.0
    gated: bool = True
    fits: bool = True
    resting: bool = False

    @property
    def key(self) -> Key:
        """Kind, and number of the optimizer."""
        return self.kind, self.optimizer


@final
@dataclass(frozen=True)
class Outcome:
    """What a full step has shown, as far as it was read.

    Args:
        step: Number of the full step, from 1.
        norms: Norm of each optimizer's gradients; nan where not measured.
        loss: Mean loss; None if it is unknown.
        warmup: Whether it belongs to the warm-up.
        predicted: Number of predicted steps right before it.
        held: Why these are undone; empty if they stand.
        slopes: Slopes of predicted steps and of the full step; None without predicted steps.
        ends: Slope of each kind's predicted movement where it ends.
        windows: Windows that were closed.
    """

    step: int
    norms: list[float]
    loss: float | None = None
    warmup: bool = False
    predicted: int = 0
    held: str = ""
    slopes: Slopes | None = None
    ends: Mapping[Key, float] | None = None
    windows: Sequence[tuple[Key, Window]] = ()


@final
class Policy:
    """Decides about predicted steps, from what full steps have shown.

    Args:
        config: The configuration.
        optimizers: Number of optimizers.

    Attributes:
        schedule: Which steps are planned as predicted steps.
        limits: Limits of losses and gradient norms.
        evidence: Evidence against predicted steps.
        confidences: What is known of forecasts, by kind and optimizer.
        skill: Skill of all forecasts together.
        blocked: The parts that must not be predicted at the moment.
        reason: Why no part may be predicted, as an event for the ledger, if that is so.
    """

    def __init__(self, config: HybridConfig, optimizers: int = 1) -> None:
        self._config = config
        self._paced = config.paced
        self._per_full_step = config.compression - 1.0
        self._always = config.always_predicted
        self.limits = Limits.of(optimizers)
        self.evidence = Evidence()
        self.confidences: dict[Key, Confidence] = {}
        self.skill = Skill()
        self._credit = 0.0
        self.parts: tuple[Part, ...] = ()
        self.judged: list[Part] = []
        self.blocked: frozenset[Part] = frozenset()
        self.closed = False
        self.reason = ""
        self._trained = 0
        self._affordable = True
        self._until_skill: int | None = None
        self.schedule = schedules.schedule(config)

    @property
    def until_skill(self) -> int:
        """Number of steps until skill can be known; 0 if predicted steps need none."""
        longest = max((part.window for part in self.parts), default=0)
        return steps_until_known(longest, short=self._paced) if self.gated else 0

    def follow(self, parts: Iterable[Part], trained: int, *, affordable: bool = True) -> None:
        """Decide about other parts from now on, or about the same ones in another condition.

        Args:
            parts: The groups with a predictor.
            trained: Number of trained weights outside embeddings.
            affordable: Whether the budget allows corrections.
        """
        self.parts = tuple(parts)
        self._trained = trained
        self._affordable = affordable
        self.decide()

    def set_length(self, steps: int) -> bool:
        """Plan a run of another length; return whether it is another one."""
        if self._until_skill is None:  # of the first groups
            self._until_skill = self.until_skill
        elif steps == self.schedule.total:
            return False
        before = self.schedule
        self.schedule = schedules.schedule(self._config.with_length(steps), self._until_skill)
        return before.total != steps

    def confidence(self, part: Part) -> Confidence:
        """Return what is known of a part's forecasts."""
        return self.confidences.get(part.key) or Confidence(fits=part.fits)

    def decide(self) -> None:
        """Block parts that rest, and gated ones that lack skill or do not last.

        If the others have too few weights, or nothing is corrected, all gated ones are blocked.
        """
        self.judged = self._judged()
        opened = self._affordable and self._suffice(self._ready)
        unfit = {p for p in self.parts if p.gated and not (opened and self._ready(p))}
        self.closed = bool(self.parts) and unfit.issuperset(self.judged)
        self.blocked = frozenset(unfit | {part for part in self.parts if part.resting})
        self.reason = self._reason()

    def _judged(self) -> list[Part]:
        """The parts without which no predicted step is made: those that decide, or all.

        With a number as speedup these are the kinds that are always predicted. If they have too few
        weights, they are all parts.
        """
        deciding = [part for part in self.parts if self._decides(part)]
        return list(self.parts) if deciding and self._too_few(deciding) else deciding

    def _decides(self, part: Part) -> bool:
        return part.kind in (KINDS if self._paced else self._always)

    def _skilled(self, part: Part) -> bool:
        return not part.gated or self.confidence(part).enough

    def _lasts(self, part: Part) -> bool:
        """Whether its forecasts last, or have to move anyway."""
        return self._decides(part) or self.confidence(part).advance > 0.0

    def _ready(self, part: Part) -> bool:
        return self._skilled(part) and self._lasts(part) and not part.resting

    def _suffice(self, fits: Callable[[Part], bool]) -> bool:
        """Return whether judged parts of a condition have most of their weights, and enough.

        Otherwise a predicted step would replace a full step and move few of the trained weights.
        """
        gated = [part for part in self.judged if part.gated]
        most = 2 * sum(part.size for part in gated if fits(part)) >= sum(p.size for p in gated)
        return bool(self.judged) and most and not self._too_few(filter(fits, self.judged))

    def _too_few(self, parts: Iterable[Part]) -> bool:
        """Return whether parts have less than a quarter of the weights outside embeddings."""
        moved = sum(part.size for part in parts if part.kind != "embedding")
        return LEAST_MOVED * moved < self._trained

    def _reason(self) -> str:
        if not self._affordable:
            return TOO_EXPENSIVE if self._config.max_overhead else NO_BUDGET
        if not self.judged:
            return NOTHING
        if self._too_few(self.parts):
            return TOO_FEW
        if self._suffice(lambda part: self._skilled(part) and self._lasts(part)):
            return NOT_UPDATED
        if self._suffice(self._skilled):
            return NOT_LASTING
        positive = self._suffice(lambda p: not p.gated or self.confidence(p).skill.lower > 0.0)
        return TOO_SHORT if positive else NO_SKILL

    @property
    def gated(self) -> bool:
        """Whether predicted steps are possible, and need skill."""
        return bool(self.judged) and all(part.gated for part in self.judged)

    @property
    def awaits_skill(self) -> bool:
        """Whether predicted steps need skill, and no skill is known yet."""
        known = any(confidence.skill.known for confidence in self.confidences.values())
        return self.gated and not known

    @property
    def locked(self) -> bool:
        """Whether nothing can be done: the budget is fixed after the first full step."""
        return not self._affordable and (self.closed or not self.judged)

    @property
    def lasting(self) -> bool:
        """Whether the forecasts of any kind have lasted in the last windows."""
        return any(confidence.advance for confidence in self.confidences.values())

    def pausing(self, step: int) -> bool:
        """Return whether no predicted steps are made before full step number ``step``."""
        return self.evidence.ended or self.limits.pausing(step)

    @property
    def futile(self) -> str:
        """Why the plug-in cannot help in the rest of the run; empty if it may."""
        return RISEN if self.limits.risen else ""

    @property
    def summary(self) -> dict[str, dict[str, float | int]]:
        """Numbers that are shown to a user, by kind; of several optimizers, the farthest one's."""
        known = sorted(self.confidences.items(), key=lambda item: item[1].advance)
        adaptive = self._config.adaptive
        return {kind: confidence.summary(adaptive=adaptive) for (kind, _), confidence in known}

    def _advance(self, part: Part) -> float:
        return 0.0 if part in self.blocked else self.confidence(part).advance

    @property
    def per_full_step(self) -> float:
        """Number of predicted steps per full step: planned, or the mean advance of all weights.

        It is 0 if the parts that move have less than a quarter of the weights.
        """
        if not self._paced:
            return self._per_full_step
        advances = [(part.size, self._advance(part)) for part in self.parts]
        size = sum(size for size, _ in advances)
        moving = sum(size for size, advance in advances if advance > 0.0)
        number = math.fsum(size * advance for size, advance in advances) / max(size, 1)
        enough = number >= LEAST and LEAST_MOVED * moving >= size
        return min(number, float(MOST_PREDICTED)) if enough else 0.0

    def due(self, position: int) -> int:
        """Return the number of predicted steps that are due before the next full step.

        Args:
            position: Index of the next step, from 0.
        """
        if not self._paced:
            return schedules.due(self.schedule, position)
        left = self.schedule.total - self.schedule.cooldown - position
        return min(math.floor(self._credit), left) if self._inside(position) else 0

    def _inside(self, position: int) -> bool:
        """Whether the step at a position is neither of the warm-up nor of the cooldown."""
        return position >= self.schedule.warmup and not schedules.cooling(self.schedule, position)

    def count_full_step(self) -> None:
        """Count a full step for the number of predicted steps that are due."""
        if self._paced:
            self._credit = self._credit % 1.0 + self.per_full_step

    def renew(self, rates: Mapping[Key, float]) -> bool:
        """Begin advances anew that were measured at far smaller learning rates than these.

        Return whether one of them did.
        """
        known = self.confidences.items()
        anew = [confidence.renew(rates[key]) for key, confidence in known if key in rates]
        if any(anew):
            self.decide()
        return any(anew)

    def multiples(self, part: Part) -> float:
        """Return how many forecasts each predicted step moves a part; 0 if it is blocked."""
        if part in self.blocked:
            return 0.0
        least = float(part.kind in self._always)
        return self.confidence(part).multiples(self.per_full_step, least=least)

    def shortfall(self, position: int, count: int, *, moves: bool) -> str:
        """Return why predicted steps that are due are not made, if it is known.

        Args:
            position: Index of the next step, from 0.
            count: Number of predicted steps that are due.
            moves: Whether they move any weight.
        """
        none_due = (
            self._paced and self._inside(position) and bool(self.parts) and not self.per_full_step
        )
        blocked = self.closed or (bool(self.judged) and self.blocked.issuperset(self.judged))
        if not moves and blocked and (count or none_due):
            return self.reason
        return NOT_LASTING if none_due and not count else ""

    def replace_optimizers(self, count: int) -> None:
        """Learn limits anew if there is another number of optimizers from now on."""
        if count != len(self.limits.norms):
            self.limits = Limits.of(count)

    def cause(self, optimizer: int, norm: float, loss: float | None, *, finite: bool) -> str:
        """Return why predicted steps are undone, by an optimizer's gradients; empty if not.

        Args:
            optimizer: Number of the optimizer.
            norm: Norm of its gradients.
            loss: The loss of the verifying step; None if it is not known yet.
            finite: Whether the forecast was finite.
        """
        limit = self.limits.largest_norms[optimizer]
        found = cause(norm, limit, loss, self._largest_loss)
        return found or ("" if finite else "the forecast was not finite")

    @property
    def _largest_loss(self) -> float:
        return self.limits.largest_loss if self._config.watch_loss else math.inf

    def learn(self, seen: Outcome) -> list[str]:
        """Take what a full step has shown into evidence, limits and confidences.

        Return:
            What has happened, as events for the ledger.
        """
        events = []
        if seen.predicted and not seen.held and seen.slopes is not None:
            events += self._weigh(seen.slopes, seen.ends or {}, seen.predicted)
        why = loss_cause(seen.loss, self._largest_loss) if seen.predicted else ""
        if seen.predicted:
            self.limits.idle = self.limits.idle + 1 if seen.held in QUIET else 0
        alarm = bool(why) or (bool(seen.held) and seen.held not in QUIET)
        if alarm or self.limits.idle >= IDLE:
            self.limits.alarm(seen.step)
        else:
            loss = seen.loss if self._config.watch_loss and seen.loss is not None else math.nan
            self.limits.learn(loss, seen.norms, warmup=seen.warmup)
        if seen.windows:
            self._close(seen.windows)
        if reason := seen.held or why:
            happened = "predicted steps were undone" if seen.held else "predicted steps pause"
            events.append(f"{happened}: {reason}")
        events += [EXHAUSTED] if self.limits.exhausted else []
        events += [ENDED] if self.evidence.ended else []
        return events

    def _weigh(self, slopes: Slopes, ends: Mapping[Key, float], predicted: int) -> list[str]:
        """Take in the slopes of predicted steps that stand."""
        self.evidence.weigh(slopes)
        # With "auto", and while forecasts last, a failed test begins them anew.
        refuted = self.evidence.ended and (self._paced or self.lasting)
        for key, confidence in self.confidences.items():
            confidence.advance = 0.0 if refuted else confidence.advance
            confidence.weigh(slopes, ends.get(key, 0.0), predicted)
        if not refuted:
            return []
        self.evidence = Evidence()
        self.decide()
        return [RESTARTED]

    def _close(self, windows: Sequence[tuple[Key, Window]]) -> None:
        """Learn from windows that were closed together."""
        parts = {part.key: part for part in sorted(self.parts, key=lambda part: part.decay)}
        for key in dict.fromkeys(key for key, _ in windows):  # alike on every rank
            part = parts.get(key)
            if part is None:  # it has lost its predictor since
                continue
            confidence = self.confidences.setdefault(key, Confidence(fits=part.fits))
            window = Window.summed([each for other, each in windows if other == key])
            confidence.add(window, decay=part.decay, planned=not self._paced)
            if not self._config.adaptive:
                confidence.advance = 0.0
        known = [each for key, each in self.confidences.items() if key in parts]
        if known:
            self.skill.add(Window.summed([each.latest.scaled(each.multiple) for each in known]))
        self.decide()

    def forget(self) -> None:
        """Forget what is known of forecasts."""
        self.confidences.clear()
        self.skill = Skill()
        self._credit = 0.0
        self.decide()

    def state_dict(self) -> dict[str, Any]:
        """Return everything as primitives."""
        return {
            "limits": self.limits.state_dict(),
            "evidence": asdict(self.evidence),
            "confidences": [[*key, each.state_dict()] for key, each in self.confidences.items()],
            "skill": asdict(self.skill),
            "credit": self._credit,
        }

    def load_state_dict(self, state: Mapping[str, Any], dropped: Collection[str] = ()) -> bool:
        """Load a :meth:`state_dict`; return whether limits fitted the optimizers.

        Args:
            state: The state.
            dropped: Kinds whose history does not fit this run, so that nothing is known of them.
        """
        self.confidences = {
            (kind, optimizer): Confidence.from_state(numbers)
            for kind, optimizer, numbers in state["confidences"]
            if kind not in dropped
        }
        self.skill = loaded(Skill, state["skill"])
        self._credit = state["credit"]
        self.decide()
        limits = Limits.from_state(state["limits"])
        if len(limits.norms) != len(self.limits.norms):
            return False
        self.limits = limits
        evidence = loaded(Evidence, state["evidence"])
        # With a number as speedup the test ends predicted steps; with "auto" they begin anew.
        self.evidence = Evidence() if evidence.ended and self._paced else evidence
        return True
