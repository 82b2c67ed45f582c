"""What decides about predicted steps: whether they are made, how many, and how far kinds move."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from hybrid_predict.config import KINDS, MOST_PREDICTED, HybridConfig
from hybrid_predict.policy import schedule as schedules
from hybrid_predict.policy.confidence import (
    LONGEST,
    SHORTEST,
    Confidence,
    Skill,
    Window,
    steps_until_known,
)
from hybrid_predict.policy.limits import CHANGED, EXHAUSTED, IDLE
from hybrid_predict.policy.policy import (
    INTERRUPTED,
    NOTHING,
    TOO_FEW,
    UNPREDICTED,
    Key,
    Outcome,
    Policy,
    load,
)
from hybrid_predict.policy.verdict import ENDED, NO_UPDATE, READ, RESTARTED, Evidence

NO_SKILL = f"{UNPREDICTED} while forecasts have not shown enough skill"
TOO_SHORT = (
    f"{UNPREDICTED} while they would be too short: forecasts have skill, but lead less than "
    f"{SHORTEST:g} of an average full step"
)
NOT_LASTING = f"{UNPREDICTED} while forecasts do not last"
TOO_EXPENSIVE = f"{UNPREDICTED}: max_overhead allows no corrected updates"
NOT_UPDATED = f"{UNPREDICTED} while too many weights are not updated in every full step"
"""Events of the ledger. Forecasts last where enough weights have an advance."""

QUIET = NO_UPDATE, READ, INTERRUPTED
"""Reasons for undoing predicted steps that are no alarm: nothing was found against them."""

LEAST_MOVED = 4
"""Predicted steps have to move at least one in this many trained weights: they take the place of
full steps, in which all would learn. Tables do not count, of which a full step moves few rows."""

LEAST = 0.02  # smallest number of predicted steps per full step; fewer are none

MOST_UNCORRECTED = 0.5
"""Largest number of predicted steps per full step, with ``"auto"``, where hidden matrices have too
few weights for predicted steps of their own, or targets have changed: as many as at the default
speedup. Corrections, which pay for missing full steps, move little in few weights."""


@final
@dataclass(frozen=True)
class Part:
    """A group of tensors that has a predictor, as the policy sees it."""

    kind: str
    optimizer: int  # its number
    size: int  # number of weights
    window: int  # displacements in a window
    decay: float = 0.0  # of the average that moves the weights, in [0, 1)
    gated: bool = True  # whether its predicted steps need skill
    fits: bool = True  # whether the length of its forecasts is fitted
    resting: bool = False  # whether it is new, did not move yet, or was not updated lately

    @property
    def key(self) -> Key:
        """Kind, and number of the optimizer."""
        return self.kind, self.optimizer


@final
class PredictingPolicy(Policy):
    """Decides about predicted steps, from what full steps have shown."""

    def __init__(self, config: HybridConfig, optimizers: int = 1) -> None:
        super().__init__(config, optimizers)
        self.evidence = Evidence()
        self.confidences: dict[Key, Confidence] = {}
        self.skill = Skill()  # of all forecasts together
        self.parts: tuple[Part, ...] = ()
        self.blocked: frozenset[Part] = frozenset()  # those that must not be predicted now
        self.closed = False  # whether all that are judged lack skill, or do not last
        self._paced = config.paced
        self._deciding = frozenset(KINDS) if config.paced else config.always_predicted
        self._affordable = True
        self._credit = 0.0  # predicted steps that are due with "auto"
        self._trained = 0
        self._most = float(MOST_PREDICTED)  # predicted steps per full step with "auto"

    @property
    def predicting(self) -> PredictingPolicy:
        """The policy itself."""
        return self

    def follow(self, parts: Iterable[Part], trained: int, *, affordable: bool = True) -> None:
        """Decide about these parts from now on, see `Policy.follow`."""
        self.parts = tuple(parts)
        self._trained = trained
        self._affordable = affordable
        few = self._too_few(part for part in self.parts if part.kind == "hidden")
        self._most = MOST_UNCORRECTED if few else float(MOST_PREDICTED)
        self.decide()
        if self._until_skill is None:  # of the first groups
            longest = max((part.window for part in self.parts), default=0)
            short = self._paced
            self._until_skill = steps_until_known(longest, short=short) if self.gated else 0

    def confidence(self, part: Part) -> Confidence:
        """Return what is known of a part's forecasts."""
        return self.confidences.get(part.key) or Confidence(fits=part.fits)

    def decide(self) -> None:
        """Block parts that rest, and gated ones that lack skill or do not last.

        Predicted steps replace full steps, so if the others have too few of the weights, or nothing
        is corrected, all gated ones are blocked. With a number as speedup the kinds that are always
        predicted are judged, but all kinds if these have too few weights.
        """
        deciding = [part for part in self.parts if part.kind in self._deciding]
        self.judged = list(self.parts) if deciding and self._too_few(deciding) else deciding
        fit = [part for part in self.judged if not self._lack(part)]
        gated = sum(part.size for part in self.judged if part.gated)
        most = 2 * sum(part.size for part in fit if part.gated) >= gated
        opened = self._affordable and self.judged and most and not self._too_few(fit)
        unfit = {p for p in self.parts if p.gated and (not opened or self._lack(p))}
        self.closed = bool(self.parts) and unfit.issuperset(self.judged)
        self.blocked = frozenset(unfit | {part for part in self.parts if part.resting})
        self.locked = not self._affordable and (self.closed or not self.judged)

    def _lack(self, part: Part) -> str:
        """Return what stands in the way of predicting a part; empty if nothing does."""
        known = self.confidence(part)
        if part.gated and not known.enough:
            return TOO_SHORT if known.skill.lower > 0.0 else NO_SKILL
        if part.kind not in self._deciding and not known.advance > 0.0:
            return NOT_LASTING
        return NOT_UPDATED if part.resting else ""

    def _too_few(self, parts: Iterable[Part]) -> bool:
        moved = sum(part.size for part in parts if part.kind != "embedding")
        return LEAST_MOVED * moved < self._trained

    @property
    def reason(self) -> str:
        """Why no part may be predicted, as an event for the ledger, if that is so."""
        if not self._affordable:
            return TOO_EXPENSIVE
        if not self.judged:
            return NOTHING
        if self._too_few(self.parts):
            return TOO_FEW
        weights = Counter[str]()
        for part in self.judged:
            weights[self._lack(part)] += part.size
        del weights[""]
        return max(weights, key=weights.__getitem__, default=NO_SKILL)

    @property
    def gated(self) -> bool:
        """Whether predicted steps are possible, and need skill."""
        return bool(self.judged) and all(part.gated for part in self.judged)

    @property
    def awaits_skill(self) -> bool:
        """Whether predicted steps need skill, and no skill is known yet."""
        return self.gated and not any(each.skill.known for each in self.confidences.values())

    def pausing(self, step: int) -> bool:
        """Return whether no predicted steps are made before full step number ``step``."""
        return self.evidence.ended or self.overfits or self.limits.pausing(step)

    @property
    def summary(self) -> dict[str, dict[str, float | int]]:
        """Numbers that are shown to a user, by kind; of several optimizers, the farthest one's."""
        known = sorted(self.confidences.items(), key=lambda item: item[1].advance)
        return {kind: each.summary() for (kind, _), each in known}

    @property
    def per_full_step(self) -> float:
        """Number of predicted steps per full step: planned, or the mean advance of all weights.

        It is 0 if the parts that move have less than a quarter of the weights.
        """
        if not self._paced:
            return self._config.compression - 1.0
        free = [part for part in self.parts if part not in self.blocked]
        advances = [(part.size, self.confidence(part).advance) for part in free]
        size = sum(part.size for part in self.parts)
        moving = sum(size for size, advance in advances if advance > 0.0)
        number = math.fsum(size * advance for size, advance in advances) / max(size, 1)
        enough = number >= LEAST and LEAST_MOVED * moving >= size
        most = MOST_UNCORRECTED if self.limits.changed else self._most
        return min(number, most) if enough else 0.0

    def due(self, position: int) -> int:
        """Return the number of predicted steps that are due before step ``position``, from 0."""
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

    def renew(self, rates: Mapping[Key, float]) -> None:
        """Begin advances anew that were measured at far smaller learning rates than these."""
        known = self.confidences.items()
        if any([each.renew(rates[key]) for key, each in known if key in rates]):
            self.decide()

    def multiples(self, part: Part) -> float:
        """Return how many forecasts each predicted step moves a part; 0 if it is blocked."""
        if part in self.blocked:
            return 0.0
        known = self.confidence(part)
        number = self.per_full_step
        length = min(known.advance / number, LONGEST) if number > 0.0 else 0.0
        least = known.multiple if part.kind in self._config.always_predicted else 0.0
        return max(least, length / known.unit)

    def shortfall(self, position: int, count: int, *, moves: bool) -> str:
        """Return why ``count`` predicted steps before a step do not move any weight, if known."""
        paced = self._paced and self._inside(position) and self.parts
        if moves or not (count or (paced and not self.per_full_step)):
            return ""
        if self.closed or (self.judged and self.blocked.issuperset(self.judged)):
            return self.reason
        return "" if count else NOT_LASTING

    def cause(self, optimizer: int, norm: float, loss: float | None, *, finite: bool) -> str:
        """Return why a verifying step undoes the predicted steps; empty if they stand.

        ``norm`` is that of the optimizer's gradients, ``loss`` is None if it is not known yet, and
        ``finite`` says whether the forecast was.
        """
        if not math.isfinite(norm):
            return "the gradient of a verifying step was not finite"
        if norm > self.limits.largest_norm(optimizer):
            return "the gradient of a verifying step was many times its usual length"
        found = self.limits.loss_cause(loss)
        return found or ("" if finite else "the forecast was not finite")

    def validate(self, value: float) -> None:
        """Take in a validation of the run; as one begins to overfit, advances begin anew."""
        before = self.overfits
        super().validate(value)
        if self.overfits and not before:
            self._begin_anew()

    def _begin_anew(self) -> None:
        for confidence in self.confidences.values():
            confidence.advance = 0.0
        self.decide()

    def learn(self, seen: Outcome) -> dict[str, int]:
        """Learn from a full step; return events for the ledger, with their logging levels."""
        events = {}
        late = ""  # what the loss says that was not known to the verdict
        limits = self.limits
        before = self._lasting
        if seen.predicted:
            if not seen.held and self._weigh(seen):
                events[RESTARTED] = logging.INFO
            late = limits.loss_cause(seen.loss)
            limits.idle = limits.idle + 1 if seen.held in QUIET else 0
        if late or seen.held not in ("", *QUIET) or limits.idle >= IDLE:
            limits.alarm(seen.step)
        else:
            super().learn(seen)
        if seen.windows:
            self._close(seen.windows)
        if seen.held:
            events[f"predicted steps were undone: {seen.held}"] = logging.INFO
        elif late:
            events[f"predicted steps pause: {late}"] = logging.INFO
        new = [event for event in self._lasting if event not in before]
        return events | dict.fromkeys(new, logging.WARNING)

    @property
    def _lasting(self) -> list[str]:
        """Events so far that hold for the rest of the run."""
        changed = self.limits.changed and self._paced
        known = {CHANGED: changed, EXHAUSTED: self.limits.exhausted, ENDED: self.evidence.ended}
        return [event for event, holds in known.items() if holds]

    def _weigh(self, seen: Outcome) -> bool:
        """Weigh slopes as evidence; return whether a failed test has begun forecasts anew."""
        if seen.slopes is None:
            return False
        self.evidence.weigh(seen.slopes)
        # With "auto", and while forecasts last, a failed test begins them anew.
        lasting = any(confidence.advance for confidence in self.confidences.values())
        for key, confidence in self.confidences.items():
            confidence.weigh(seen.slopes, (seen.ends or {}).get(key, 0.0), seen.predicted)
        if not (self.evidence.ended and (self._paced or lasting)):
            return False
        self.evidence = Evidence()
        self._begin_anew()
        return True

    def _close(self, windows: Sequence[tuple[Key, Window]]) -> None:
        parts = {part.key: part for part in sorted(self.parts, key=lambda part: part.decay)}
        missing = Counter(part.key for part in self.parts)
        missing.subtract(key for key, _ in windows)
        for key in dict.fromkeys(key for key, _ in windows):  # alike on every rank
            part = parts.get(key)
            if part is None:  # it has lost its predictor since
                continue
            confidence = self.confidences.setdefault(key, Confidence(fits=part.fits))
            window = Window.summed([each for other, each in windows if other == key])
            if missing[key] > 0:  # without all of its parts it shows skill and length alone
                window = window._replace(steps=0, late=0.0)
            confidence.add(window, decay=part.decay, planned=not self._paced)
            if not self._paced and self._config.predictors is not None:  # one forecast, as chosen
                confidence.advance = 0.0
        known = [each for key, each in self.confidences.items() if key in parts]
        if known:
            self.skill.add(Window.summed([each.latest.scaled(each.multiple) for each in known]))
        self.decide()

    def forget(self) -> None:
        """Forget what is known of validations and forecasts."""
        super().forget()
        self.evidence = Evidence()
        self.confidences.clear()
        self.skill = Skill()
        self._credit = 0.0
        self.decide()

    def state_dict(self) -> dict[str, Any]:
        """Return everything as primitives."""
        known = {
            "evidence": asdict(self.evidence),
            "confidences": [[*key, asdict(each)] for key, each in self.confidences.items()],
            "skill": asdict(self.skill),
            "credit": self._credit,
        }
        return {**super().state_dict(), "forecasts": known}

    def load_state_dict(self, state: Mapping[str, Any], dropped: Collection[str] = ()) -> bool:
        """Load a :meth:`state_dict`, but for ``dropped`` kinds; return whether limits fitted."""
        fitted = super().load_state_dict(state, dropped)
        if (known := state["forecasts"]) is not None:  # else of a run without predicted steps
            for kind, optimizer, numbers in known["confidences"]:
                if kind not in dropped:
                    load(self.confidences.setdefault((kind, optimizer), Confidence()), numbers)
            load(self.skill, known["skill"])
            if fitted:
                load(self.evidence, known["evidence"])
            self._credit = known["credit"]
            self.decide()
        return fitted
