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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean, stdev
from typing import Any

import numpy as np

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.ledger import percent
from hybrid_predict.runs.evidence import (
    FEW_SEEDS,
    FULL,
    HYBRID,
    LEAST_SAVING,
    SHORT,
    Bounds,
    bounds,
)

_UNSTABLE = (
    "If it diverged, lower the learning rate or clip gradients until plain training is stable; if "
    "its weights are finite, correct how validation computes the metric."
)


class AuditOutcome(str, Enum):
    """What an audit found."""

    VERIFIED = "verified"
    NO_SAVING = "no saving"
    UNDECIDED = "undecided"


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
    seeds: Sequence[Sequence[Mapping[str, Any]]],
    config: AuditConfig,
    arm: str = HYBRID,
    time: float | None = None,
) -> AuditVerdict:
    """Judge whether the hybrid arm saves steps at equal quality.

    Args:
        seeds: Of each seed the runs of the full, the short and the hybrid arm: mappings with the
            final ``metric``, None if the run failed, and ``full_steps``.
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
    verdict = _compared(seeds, config, arm, time)
    if n < FEW_SEEDS:
        headline = f"hint from {counted_seeds(n)}: {verdict.headline}"
        return replace(verdict, outcome=AuditOutcome.UNDECIDED, headline=headline)
    return _decided(verdict, config, arm) if verdict.contrast else verdict


def _compared(
    seeds: Sequence[Sequence[Mapping[str, Any]]], config: AuditConfig, arm: str, time: float | None
) -> AuditVerdict:
    """Return what was measured, with bounds from two seeds on, if all metrics are finite."""
    metrics = np.array([[run["metric"] for run in runs] for runs in seeds], dtype=float)
    steps = np.array([[run["full_steps"] for run in runs] for runs in seeds], dtype=float)
    most, _, taken = steps.mean(axis=0)
    saving = float(1.0 - taken / most)
    verdict = AuditVerdict(AuditOutcome.UNDECIDED, "", "", len(seeds), saving)
    for name, values in zip((FULL, SHORT, arm), metrics.T, strict=True):
        if bad := np.count_nonzero(~np.isfinite(values)):
            what = f"the {name} arm has no finite metric on {bad} of {len(seeds)} seeds"
            if name in (FULL, SHORT):
                return replace(verdict, headline=f"no comparison: {what}", text=_UNSTABLE)
            text = "The full and the short arm have no such seed, so the callback is the cause."
            verdict = replace(verdict, headline=f"no saving: {what}", text=text)
            return replace(verdict, outcome=AuditOutcome.NO_SAVING)
    full, short, hybrid = config.sign * metrics.T
    ways = [float(np.interp(k, [s, n], [0.0, 1.0])) for n, s, k in np.log(steps)]
    control = short + np.array(ways) * (full - short)
    worth = control - full
    lost = hybrid - full
    difference = f"{config.metric} differs by {config.sign * lost.mean():+.3g}"
    less = "fewer" if time is None or time < 1.0 else "more"
    seconds = "" if time is None else f"{percent(abs(1.0 - time))} {less} seconds, "
    headline = f"{percent(saving)} fewer full steps, {seconds}{difference}"
    if saving < LEAST_SAVING:
        headline = "no full steps were saved, so there is no saving to prove"
    elif len(seeds) > 1:
        headline += f" ± {stdev(lost.tolist()):.2g}"
    way = fmean(ways)
    text = _explained(way, saving, config, arm)
    verdict = replace(verdict, headline=headline, text=text, way=way)
    if len(seeds) < 2:
        return verdict
    allowed = config.margin or (1.0 - config.retain) * worth
    return replace(
        verdict,
        contrast=bounds((lost - allowed).tolist(), config.alpha),
        gain=bounds((control - hybrid).tolist(), config.alpha),
        worth=bounds(worth.tolist(), config.alpha),
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
