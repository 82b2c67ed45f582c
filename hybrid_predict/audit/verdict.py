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
hypothesis (Pigeot, Schäfer, Röhmel and Hauschke, "Assessing non-inferiority of a new treatment in a
three-arm clinical trial including a placebo", 2003), here for paired observations. The hybrid arm
must also be better than the control (assay sensitivity): the lower bound of the mean of p_i - h_i
must be above 0. Both have to hold, so each is tested at the full level (Berger, "Multiparameter
hypothesis testing and acceptance sampling", 1982).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from statistics import fmean, stdev
from typing import Any

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


class AuditOutcome(str, Enum):
    """What an audit found."""

    VERIFIED = "verified"
    NO_SAVING = "no saving"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class PairedSeed:
    """Results of the arms of one seed.

    Args:
        full: Final metric of the full arm; not finite if it diverged or could not be measured.
        short: The same of the short arm.
        hybrid: The same of the hybrid arm.
        full_steps: Full steps of the full arm.
        short_steps: Full steps of the short arm, fewer than those.
        hybrid_steps: Full steps of the hybrid arm.
        unmeasured: Arms whose metric is not finite although their weights are.
    """

    full: float
    short: float
    hybrid: float
    full_steps: float
    short_steps: float
    hybrid_steps: float
    unmeasured: frozenset[str] = frozenset()

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
        line: Difference from the full arm, less being better, below which the hybrid arm has to
            stay: the margin, or (1 - retain) times the mean difference of control and full.
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
    line: float | None = None
    way: float | None = None
    contrast: Bounds | None = None
    gain: Bounds | None = None
    worth: Bounds | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {**asdict(self), "outcome": self.outcome.value}


def judge_audit(
    seeds: Sequence[PairedSeed], config: AuditConfig, arm: str = HYBRID
) -> AuditVerdict:
    """Judge whether the hybrid arm saves steps at equal quality.

    Args:
        seeds: Results of the seeds that have all arms.
        config: Gives mode, margin, retention and level.
        arm: Name of the arm in the place of the hybrid one.

    Returns:
        The verdict; below five seeds it is always undecided, and its text is a hint.
    """
    n = len(seeds)
    if not n:
        text = "No seed has all its arms yet."
        return AuditVerdict(AuditOutcome.UNDECIDED, "nothing to compare yet", text)
    taken = fmean(s.hybrid_steps for s in seeds)
    saving = 1.0 - taken / fmean(s.full_steps for s in seeds)
    verdict = _unstable(seeds, arm) or _compare(seeds, saving, config, arm)
    verdict = replace(verdict, seeds=n, saving=saving)
    if n >= FEW_SEEDS:
        return verdict
    many = counted_seeds(n)
    return replace(
        verdict,
        outcome=AuditOutcome.UNDECIDED,
        headline=f"not enough seeds to tell: {many} of at least {FEW_SEEDS}",
        text=f"A hint from {many}: {verdict.headline}. {verdict.text}".rstrip(),
    )


def _unstable(seeds: Sequence[PairedSeed], arm: str) -> AuditVerdict | None:
    """Return the verdict if an arm has no finite metric; a plain arm that diverged comes first."""
    for place, name in ((FULL, FULL), (SHORT, SHORT), (HYBRID, arm)):
        bad = [s for s in seeds if not math.isfinite(getattr(s, place))]
        if not bad:
            continue
        what = f"the {name} arm's metric is not finite on {len(bad)} of {len(seeds)} seeds"
        text = "The weights are finite: correct how validation computes the metric."
        if diverged := sum(place not in s.unmeasured for s in bad):
            what = f"the {name} arm diverged on {diverged} of {len(seeds)} seeds"
            text = "Lower the learning rate or clip gradients until plain training is stable."
        if place == HYBRID:
            text = "The full and the short arm have no such seed, so the callback is the cause."
            return AuditVerdict(AuditOutcome.NO_SAVING, f"no saving: {what}", text)
        return AuditVerdict(AuditOutcome.UNDECIDED, f"no comparison: {what}", text)
    return None


def _compare(
    seeds: Sequence[PairedSeed], saving: float, config: AuditConfig, arm: str
) -> AuditVerdict:
    """Return the verdict on arms that all have a finite metric."""
    sign = config.sign
    lost = [sign * (s.hybrid - s.full) for s in seeds]
    worth = [sign * (s.control - s.full) for s in seeds]
    gain = [sign * (s.control - s.hybrid) for s in seeds]
    lines = [config.margin or (1.0 - config.retain) * w for w in worth]
    way = fmean(s.way for s in seeds)
    difference = signed(sign * fmean(lost))
    verdict = AuditVerdict(
        AuditOutcome.UNDECIDED,
        f"saving {percent(saving)} at a difference of {difference}",
        "",
        line=fmean(lines),
        way=way,
    )
    if len(seeds) < 2:
        return verdict
    contrast = [d - line for d, line in zip(lost, lines, strict=True)]
    verdict = replace(
        verdict,
        contrast=bounds(contrast, config.alpha),
        gain=bounds(gain, config.alpha),
        worth=bounds(worth, config.alpha),
    )
    outcome, headline = _decided(verdict, saving, config, arm)
    if outcome is AuditOutcome.VERIFIED:
        spread = f"{difference} ± {stdev(lost):.2g}, n = {len(seeds)}"
        headline = f"verified saving {percent(saving)} at equal quality (difference {spread})"
    steps = fmean(s.hybrid_steps for s in seeds)
    text = _explained(verdict, saving, steps, config, arm)
    return replace(verdict, outcome=outcome, headline=headline, text=text)


def _decided(
    verdict: AuditVerdict, saving: float, config: AuditConfig, arm: str
) -> tuple[AuditOutcome, str]:
    """Return the outcome and, unless it is verified, the headline."""
    contrast = verdict.contrast
    gain = verdict.gain
    worth = verdict.worth
    assert contrast and gain and worth
    none = AuditOutcome.NO_SAVING
    undecided = AuditOutcome.UNDECIDED
    few = "not enough seeds to tell"
    control = "plain training of as many full steps"
    if (verdict.way or 0.0) < LEAST_SAVING:
        control = "the short arm"
    if saving < LEAST_SAVING:
        why = ": predicted steps were not made or were undone, so" if arm == HYBRID else ":"
        return none, f"no saving{why} {percent(saving)} of the full steps were saved"
    if worth.upper < (config.margin or 0.0):
        equal = "better than" if config.margin is None else "as good as"
        why = f"{control} is {equal} the full arm, so the run can simply be shortened"
        return none, f"no saving is credited: {why}"
    if contrast.lower > 0:
        return none, f"no saving: the {arm} arm is inferior to the full arm"
    if contrast.upper < 0 < gain.lower:
        return AuditOutcome.VERIFIED, ""
    if contrast.upper < 0:
        why = f"the {arm} arm is not shown to be better than {control}, so no saving is credited"
        return undecided, f"{few}: {why}"
    if worth.lower <= 0:
        why = "cannot be told apart, so what the saved steps are worth is unknown"
        return undecided, f"{few}: {control} and the full arm {why}"
    return undecided, f"{few} whether the {arm} arm is inferior to the full arm"


def _explained(
    verdict: AuditVerdict, saving: float, steps: float, config: AuditConfig, arm: str
) -> str:
    """Return the control and what is tested, in sentences."""
    control = "the short arm, which takes as many full steps"
    if (verdict.way or 0.0) >= LEAST_SAVING:
        control = (
            f"plain training of as many full steps, {steps:,.0f}, interpolated between the short "
            "and the full arm"
        )
    condition = f"lose less than {config.margin}"
    if config.margin is None:
        condition = f"keep {percent(config.retain)} of what the saved steps are worth"
    return (
        f"The {arm} arm took {percent(saving)} fewer full steps than the full arm. It has to "
        f"{condition}, and to be better than its control: {control}. Paired one-sided t tests over "
        f"the seeds, each at level {config.alpha:g}."
    )


def counted_seeds(number: int) -> str:
    """Format a number of seeds."""
    return "1 seed" if number == 1 else f"{number} seeds"


def signed(value: float) -> str:
    """Format a number with its sign, to three significant digits."""
    return f"{value:+.3g}"


def percent(share: float) -> str:
    """Format a share in percent."""
    return f"{100 * share:.3g} %" if share < 0.01 else f"{100 * share:.0f} %"
