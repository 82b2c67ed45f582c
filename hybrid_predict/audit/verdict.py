r"""Whether the hybrid arm saves steps at equal quality: a paired, one-sided non-inferiority test.

Signs are turned so that lower is better. Let f, s and h be the final metric of the full, the short
and the hybrid arm after N, S and K full steps. The control is plain training of K full steps: the
short arm if K is at most S, else interpolated between the short and the full arm,

    p_i = s_i + w_i (f_i - s_i),    w_i = \log(K_i / S_i) / \log(N_i / S_i) within 0 and 1.

Every seed i gives a contrast

    c_i = h_i - \theta f_i - (1 - \theta) p_i    (``retain`` = \theta, the default), or
    c_i = h_i - f_i - m                          (``margin`` = m).

The hybrid arm is *non-inferior* if the upper one-sided confidence bound of the mean of c is below
0, and *inferior* if the lower bound is above 0. The default contrast is the retention-of-effect
hypothesis (Pigeot, Schäfer, Röhmel and Hauschke, 2003), here for paired observations. The hybrid
arm must also be better than the control (assay sensitivity): the lower bound of the mean of p - h
must be above 0. Both have to hold, so each is tested at the full level (Berger, 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean, stdev

import numpy as np

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.runs.evidence import (
    FEW_SEEDS,
    FULL,
    HYBRID,
    LEAST_SAVING,
    SHORT,
    Bounds,
    bounds,
)
from hybrid_predict.text import percent


class AuditOutcome(str, Enum):
    """What an audit found."""

    VERIFIED = "verified"
    NO_SAVING = "no saving"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class PairedSeed:
    """Results of the arms of one seed.

    Args:
        full: Final metric of the full arm; not finite if the run failed.
        short: The same of the short arm.
        hybrid: The same of the hybrid arm.
        full_steps: Full steps of the full arm.
        short_steps: Full steps of the short arm, fewer than those.
        hybrid_steps: Full steps of the hybrid arm.
    """

    full: float
    short: float
    hybrid: float
    full_steps: float
    short_steps: float
    hybrid_steps: float

    @property
    def way(self) -> float:
        """Weight w of the full arm in the control, 0 to 1."""
        ends = [math.log(self.short_steps), math.log(self.full_steps)]
        return float(np.interp(math.log(self.hybrid_steps), ends, [0.0, 1.0]))

    @property
    def control(self) -> float:
        """Metric p of plain training of the hybrid arm's full steps."""
        return self.short + self.way * (self.full - self.short)


@dataclass(frozen=True)
class AuditVerdict:
    """What an audit found, and why.

    Args:
        outcome: The finding.
        headline: The finding in one line.
        text: How it was reached.
        seeds: Number of seeds with all arms.
        saving: Share of the full arm's full steps that the hybrid arm did not take.
        way: Mean weight of the full arm in the control, from 0 to 1.
        contrast: Bounds of c, which decides.
        gain: Bounds of control - hybrid, which shows that the comparison can tell arms apart.
        worth: Bounds of control - full, what the saved steps are worth.
    """

    outcome: AuditOutcome
    headline: str
    text: str
    seeds: int = 0
    saving: float | None = None
    way: float | None = None
    contrast: Bounds | None = None
    gain: Bounds | None = None
    worth: Bounds | None = None


def judge_audit(
    seeds: Sequence[PairedSeed],
    config: AuditConfig,
    arm: str = HYBRID,
    time: float | None = None,
) -> AuditVerdict:
    """Judge whether the hybrid arm saves steps at equal quality.

    Args:
        seeds: Results of the seeds that have all arms.
        config: Gives mode, margin, retention and level.
        arm: Name of the arm in the place of the hybrid one.
        time: Its seconds per second of the full arm, for the headline; None if unknown.

    Returns:
        The verdict; below five seeds it is always undecided, and its headline is a hint.
    """
    n = len(seeds)
    if not n:
        text = "No seed has all its arms yet."
        return AuditVerdict(AuditOutcome.UNDECIDED, "nothing to compare yet", text)
    saving = 1.0 - fmean(s.hybrid_steps for s in seeds) / fmean(s.full_steps for s in seeds)
    verdict = _unstable(seeds, arm) or _compared(seeds, saving, config, arm, time)
    verdict = replace(verdict, seeds=n, saving=saving)
    if n < FEW_SEEDS:
        headline = f"hint from {counted_seeds(n)}: {verdict.headline}"
        return replace(verdict, outcome=AuditOutcome.UNDECIDED, headline=headline)
    return _decided(verdict, config, arm) if verdict.contrast else verdict


def _unstable(seeds: Sequence[PairedSeed], arm: str) -> AuditVerdict | None:
    """Return the verdict if an arm has no finite metric; a plain arm that diverged comes first."""
    for place, name in ((FULL, FULL), (SHORT, SHORT), (HYBRID, arm)):
        bad = [s for s in seeds if not math.isfinite(getattr(s, place))]
        if not bad:
            continue
        what = f"the {name} arm has no finite metric on {len(bad)} of {len(seeds)} seeds"
        if place == HYBRID:
            text = "The full and the short arm have no such seed, so the callback is the cause."
            return AuditVerdict(AuditOutcome.NO_SAVING, f"no saving: {what}", text)
        text = (
            "If it diverged, lower the learning rate or clip gradients until plain training is "
            "stable; if its weights are finite, correct how validation computes the metric."
        )
        return AuditVerdict(AuditOutcome.UNDECIDED, f"no comparison: {what}", text)
    return None


def _compared(
    seeds: Sequence[PairedSeed], saving: float, config: AuditConfig, arm: str, time: float | None
) -> AuditVerdict:
    """Return what was measured on arms that all have a finite metric; two seeds have bounds."""
    sign = config.sign
    lost = [sign * (s.hybrid - s.full) for s in seeds]
    worth = [sign * (s.control - s.full) for s in seeds]
    gain = [sign * (s.control - s.hybrid) for s in seeds]
    allowed = [config.margin or (1.0 - config.retain) * w for w in worth]
    contrast = [d - most for d, most in zip(lost, allowed, strict=True)]
    way = fmean(s.way for s in seeds)
    difference = f"{config.metric} differs by {sign * fmean(lost):+.3g}"
    seconds = "" if time is None else f"{percent(abs(1.0 - time))} {_less(time)} seconds, "
    measured = f"{percent(saving)} fewer full steps, {seconds}{difference}"
    if saving < LEAST_SAVING:
        measured = "no full steps were saved, so there is no saving to prove"
    elif len(seeds) > 1:
        measured += f" ± {stdev(lost):.2g}"
    text = _explained(way, saving, config, arm)
    verdict = AuditVerdict(AuditOutcome.UNDECIDED, measured, text, way=way)
    if len(seeds) < 2:
        return verdict
    return replace(
        verdict,
        contrast=bounds(contrast, config.alpha),
        gain=bounds(gain, config.alpha),
        worth=bounds(worth, config.alpha),
    )


def _decided(verdict: AuditVerdict, config: AuditConfig, arm: str) -> AuditVerdict:
    contrast = verdict.contrast
    gain = verdict.gain
    worth = verdict.worth
    assert contrast and gain and worth and verdict.saving is not None
    control = _control(verdict.way or 0.0)
    outcome = AuditOutcome.NO_SAVING
    headline = verdict.headline
    if verdict.saving < LEAST_SAVING:
        pass
    elif worth.upper < (config.margin or 0.0):
        headline = f"no saving: simply shorten the run, {control} is as good as the full arm"
    elif contrast.lower > 0:
        headline = f"no saving: the {arm} arm is inferior to the full arm"
    elif contrast.upper < 0 < gain.lower:
        outcome = AuditOutcome.VERIFIED
        headline = f"verified saving at equal quality: {headline}"
    else:
        outcome = AuditOutcome.UNDECIDED
        what = f"whether the {arm} arm is inferior to the full arm"
        if contrast.upper < 0:
            what = f"whether the {arm} arm is better than its control, {control}"
        headline = f"not enough seeds to tell {what}"
    return replace(verdict, outcome=outcome, headline=headline)


def _less(time: float) -> str:
    return "fewer" if time < 1.0 else "more"


def _control(way: float) -> str:
    if way < LEAST_SAVING:
        return "the short arm, which takes as many full steps"
    return "plain training of as many full steps, interpolated between the short and the full arm"


def _explained(way: float, saving: float, config: AuditConfig, arm: str) -> str:
    condition = f"lose less than {config.margin}"
    if config.margin is None:
        condition = f"keep {percent(config.retain)} of what the saved steps are worth"
    return (
        f"The {arm} arm took {percent(saving)} fewer full steps than the full arm. It has to "
        f"{condition}, and to be better than its control: {_control(way)}. Paired one-sided t "
        f"tests over at least {FEW_SEEDS} seeds, each at level {config.alpha:g}."
    )


def counted_seeds(number: int) -> str:
    """Format a number of seeds."""
    return "1 seed" if number == 1 else f"{number} seeds"
