r"""Whether the hybrid arm saves steps at equal quality: a paired, one-sided non-inferiority test.

Signs are turned so that less is better. With f, s and h for the final metric of the full, the
short and the hybrid arm after N, S and K full steps, the control is plain training of the hybrid
arm's K full steps. Where K is at most S, that is the short arm. A hybrid arm whose predicted steps
were undone or not made takes more; then the control lies between the short and the full arm, on a
line in the logarithm of the steps:

    p_i = s_i + w_i (f_i - s_i),    w_i = \log(K_i / S_i) / \log(N_i / S_i) within 0 and 1.

Every seed i gives a contrast

    c_i = h_i - \theta f_i - (1 - \theta) p_i    (``retain`` = \theta, the default), or
    c_i = h_i - f_i - m                          (``margin`` = m).

Over n seeds its mean has the one-sided confidence bounds

    \bar c \pm t_{1 - \alpha, n - 1} \operatorname{sd}(c) / \sqrt n.

The hybrid arm is *non-inferior* if the upper bound is below 0 and *inferior* if the lower bound is
above 0. Written as h - f < (1 - \theta)(p - f), the default says that the hybrid arm keeps at least
the share \theta of what the steps that it saves are worth: the retention-of-effect hypothesis of
trials with a reference, a placebo and a new treatment (Pigeot, Schäfer, Röhmel and Hauschke,
"Assessing non-inferiority of a new treatment in a three-arm clinical trial including a placebo",
2003), here for paired observations.

A comparison that cannot tell good from bad would find everything equal. So the hybrid arm must also
be better than the control, which takes as many full steps: the lower bound of the mean of p_i - h_i
must be above 0 (assay sensitivity). Both have to hold, so each is tested at the full level (Berger,
"Multiparameter hypothesis testing and acceptance sampling", 1982).

The corrected arm has no part in the verdict; :mod:`hybrid_predict.audit.mechanisms` compares it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

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
    """What the arms of the verdict ended with from one seed.

    Args:
        full: Final metric of the full arm; not finite if it diverged or could not be measured.
        short: The same of the short arm.
        hybrid: The same of the hybrid arm.
        full_steps: Full steps of the full arm.
        short_steps: Full steps of the short arm, fewer than those.
        hybrid_steps: Full steps of the hybrid arm.
        unmeasured: The arms whose metric is not finite though their weights are.
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
        """How far the hybrid arm's full steps are on the way from short to full, 0 to 1."""
        ends = [math.log(self.short_steps), math.log(self.full_steps)]
        return float(np.interp(math.log(self.hybrid_steps), ends, [0.0, 1.0]))

    @property
    def control(self) -> float:
        """What plain training of the hybrid arm's full steps would have ended with."""
        return self.short + self.way * (self.full - self.short)


class _Tested(NamedTuple):
    """What is tested, see :class:`AuditVerdict`."""

    contrast: Bounds
    gain: Bounds
    worth: Bounds


@dataclass(frozen=True)
class AuditVerdict:
    """What came out and why.

    Args:
        outcome: What was found.
        headline: The finding in one line.
        text: How it was reached.
        seeds: Number of seeds with all arms.
        saving: Share of the full arm's full steps that the hybrid arm did not take.
        line: Difference from the full arm, less being better, below which the hybrid arm has to
            stay: the margin, or (1 - retain) times the mean difference of control and full.
        way: How far, from 0 to 1, the control is on the way from the short to the full arm.
        contrast: Of c_i, which decides.
        gain: Of control - hybrid, which shows that the comparison can tell arms apart.
        worth: Of control - full, what the saved steps are worth.
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
        """The verdict as plain data."""
        return {**asdict(self), "outcome": self.outcome.value}


def judge_audit(
    seeds: Sequence[PairedSeed], config: AuditConfig, arm: str = HYBRID
) -> AuditVerdict:
    """The verdict over all seeds whose arms are done.

    Args:
        seeds: One entry per seed.
        config: Gives mode, margin or retention, and level.
        arm: What the arm is called that stands in the place of the hybrid one.

    Returns:
        The verdict; below five seeds it is always undecided, and its text a hint.
    """
    n = len(seeds)
    if not n:
        text = "No seed has all its arms yet."
        return AuditVerdict(AuditOutcome.UNDECIDED, "nothing to compare yet", text)
    taken = statistics.fmean(s.hybrid_steps for s in seeds)
    saving = 1.0 - taken / statistics.fmean(s.full_steps for s in seeds)
    verdict = _unstable(seeds, saving, arm) or _compare(seeds, saving, config, arm)
    if n >= FEW_SEEDS:
        return verdict
    many = counted_seeds(n)
    return replace(
        verdict,
        outcome=AuditOutcome.UNDECIDED,
        headline=f"not enough seeds to tell: {many} of at least {FEW_SEEDS}",
        text=f"A hint from {many}, which so far say: {verdict.headline}. {verdict.text}".rstrip(),
    )


def _unstable(seeds: Sequence[PairedSeed], saving: float, arm: str) -> AuditVerdict | None:
    """The verdict if an arm diverged; the plain arms first, for they say that the task is so."""
    n = len(seeds)
    for place, name in ((FULL, FULL), (SHORT, SHORT), (HYBRID, arm)):
        bad = [s for s in seeds if not math.isfinite(getattr(s, place))]
        if not bad:
            continue
        diverged = sum(place not in s.unmeasured for s in bad)
        what = f"the {name} arm diverged on {diverged} of {n} seeds"
        text = "Lower the learning rate or clip gradients until plain training is stable."
        if not diverged:
            what = f"the {name} arm's metric is not finite on {len(bad)} of {n} seeds"
            text = "The weights are finite: mend how validation computes the metric."
        if place == HYBRID:
            text = "The full and the short arm have no such seed, so the callback is the cause."
            return AuditVerdict(AuditOutcome.NO_SAVING, f"no saving: {what}", text, n, saving)
        return AuditVerdict(AuditOutcome.UNDECIDED, f"no comparison: {what}", text, n, saving)
    return None


def _compare(
    seeds: Sequence[PairedSeed], saving: float, config: AuditConfig, arm: str
) -> AuditVerdict:
    """The verdict on arms that all ended with a finite metric."""
    n, sign = len(seeds), 1.0 if config.mode == "min" else -1.0
    lost = [sign * (s.hybrid - s.full) for s in seeds]
    worth = [sign * (s.control - s.full) for s in seeds]
    gain = [sign * (s.control - s.hybrid) for s in seeds]
    way = statistics.fmean(s.way for s in seeds)
    if config.margin is None:
        given_up = 1.0 - config.retain
        line = given_up * statistics.fmean(worth)
        contrast = [d - given_up * w for d, w in zip(lost, worth, strict=True)]
    else:
        line = config.margin
        contrast = [d - line for d in lost]
    difference = signed(sign * statistics.fmean(lost))
    if n < 2:
        headline = f"saving {percent(saving)} at a difference of {difference}"
        return AuditVerdict(AuditOutcome.UNDECIDED, headline, "", n, saving, line, way)
    lots = (contrast, gain, worth)
    tested = _Tested(*(bounds(values, config.alpha) for values in lots))
    control = _control(seeds, way)
    outcome, headline = _decide(tested, saving, config, control, arm)
    if outcome is AuditOutcome.VERIFIED:
        spread = f"{difference} ± {statistics.stdev(lost):.2g}, n = {n}"
        headline = f"verified saving {percent(saving)} at equal quality (difference {spread})"
    text = _explain(tested, saving, config, control, arm)
    return AuditVerdict(outcome, headline, text, n, saving, line, way, *tested)


def _control(seeds: Sequence[PairedSeed], way: float) -> tuple[str, str]:
    """What the control is called, and what it is."""
    if way < LEAST_SAVING:
        return "the short arm", "the short arm, which takes as many full steps"
    taken = statistics.fmean(s.hybrid_steps for s in seeds)
    return "plain training of as many full steps", (
        f"plain training of as many full steps, {taken:,.0f}, which is assumed to end "
        f"{percent(way)} of the way from the short to the full arm (linear in the logarithm of the "
        "steps)"
    )


def _decide(
    tested: _Tested, saving: float, config: AuditConfig, control: tuple[str, str], arm: str
) -> tuple[AuditOutcome, str]:
    """The outcome and, unless it is verified, the headline."""
    contrast, gain, worth = tested
    none, open_ = AuditOutcome.NO_SAVING, AuditOutcome.UNDECIDED
    if saving < LEAST_SAVING:
        why = ": predicted steps were not made or were undone, so" if arm == HYBRID else ":"
        return none, f"no saving{why} {percent(saving)} of the full steps were saved"
    if worth.upper < (config.margin or 0.0):
        equal = "better than" if config.margin is None else "as good as"
        return none, (
            f"no saving is credited: {control[0]} is {equal} the full arm, so the run can "
            "simply be shortened"
        )
    if contrast.lower > 0:
        return none, f"no saving: the {arm} arm is inferior to the full arm"
    if contrast.upper < 0:
        if gain.lower > 0:
            return AuditOutcome.VERIFIED, ""
        return open_, (
            f"not enough seeds to tell: the {arm} arm is not shown to be better than "
            f"{control[0]}, so no saving is credited"
        )
    if worth.lower <= 0:
        return open_, (
            f"not enough seeds to tell: {control[0]} and the full arm cannot be told apart, so "
            "what the saved steps are worth is unknown"
        )
    return open_, f"not enough seeds to tell whether the {arm} arm is inferior to the full arm"


def _explain(
    tested: _Tested, saving: float, config: AuditConfig, control: tuple[str, str], arm: str
) -> str:
    """The tests and their bounds, in sentences."""
    contrast, gain, worth = tested
    level, theta = f"{100 * (1.0 - config.alpha):.3g} %", f"{config.retain:g}"
    if config.margin is None:
        asked = (
            f"keep at least {percent(config.retain)} of what the saved steps are worth (control - "
            f"full: {signed(worth.mean)} ± {worth.sd:.2g})"
        )
        formula = f"{arm} - {theta} full - {1.0 - config.retain:g} control"
    else:
        asked = f"lose less than the margin of {config.margin:g}"
        formula = f"{arm} - full - {config.margin:g}"
    met, apart = contrast.upper < 0, gain.lower > 0
    turned = "" if config.mode == "min" else ", signs turned so that less is better"
    return (
        f"The {arm} arm took {percent(saving)} fewer full steps than the full arm. Its "
        f"control is {control[1]}. It has to "
        f"{asked}: the upper bound of the mean of {formula} over seeds has to be below 0{turned}. "
        f"The mean is {signed(contrast.mean)}, its one-sided {level} bounds are "
        f"{signed(contrast.lower)} and {signed(contrast.upper)}: {'met' if met else 'not met'}. It "
        f"also has to be better than the control: control - {arm} is "
        f"{signed(gain.mean)} with the lower bound {signed(gain.lower)}, which has to be above 0: "
        f"{'met' if apart else 'not met'}. Paired t tests over {contrast.n} seeds, each "
        f"at level {config.alpha:g}; ± is the standard deviation over seeds."
    )


def counted_seeds(number: int) -> str:
    """A number of seeds, in words."""
    return "1 seed" if number == 1 else f"{number} seeds"


def signed(value: float) -> str:
    """A number with its sign, to three significant digits."""
    return f"{value:+.3g}"


def percent(share: float) -> str:
    """A share in percent, without needless digits."""
    return f"{100 * share:.3g} %" if share < 0.01 else f"{100 * share:.0f} %"
