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
        contrast: Bounds of c, which decides; None below two seeds, as those below.
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
            final ``metric``, None if the run failed, and ``full_steps``. Below five the verdict is
            always undecided, and its headline is a hint.
        config: Gives mode, margin, retention and level.
        arm: Name of the arm in the place of the hybrid one.
        time: Its seconds per second of the full arm, for the headline; None if unknown.
    """
    if not seeds:
        text = "No seed has all its arms yet."
        return AuditVerdict(AuditOutcome.UNDECIDED, "nothing to compare yet", text)
    metrics = np.array([[run["metric"] for run in runs] for runs in seeds], dtype=float).T
    steps = np.array([[run["full_steps"] for run in runs] for runs in seeds], dtype=float).T
    saving = float(1.0 - steps[2].mean() / steps[0].mean())
    found = AuditVerdict(AuditOutcome.UNDECIDED, "", "", len(seeds), saving)
    failed = _failed(metrics, arm)
    if failed is None:
        found = replace(found, **_compared(config.sign * metrics, steps, config))
        counted = _counted(saving, metrics[2] - metrics[0], config, time)
        outcome, headline = _finding(found, counted, config, arm)
        text = _explained(found, config, arm)
    else:
        outcome, headline, text = failed
    if len(seeds) < FEW_SEEDS:
        outcome = AuditOutcome.UNDECIDED
        headline = f"hint from {counted_seeds(len(seeds))}: {headline}"
    return replace(found, outcome=outcome, headline=headline, text=text)


def _failed(metrics: Any, arm: str) -> tuple[AuditOutcome, str, str] | None:
    """Return outcome, headline and text if a metric is not finite."""
    for name, values in zip((FULL, SHORT, arm), metrics, strict=True):
        if bad := np.count_nonzero(~np.isfinite(values)):
            what = f"the {name} arm has no finite metric on {bad} of {len(values)} seeds"
            if name != arm:
                return AuditOutcome.UNDECIDED, f"no comparison: {what}", _UNSTABLE
            text = "The full and the short arm have no such seed, so the callback is the cause."
            return AuditOutcome.NO_SAVING, f"no saving: {what}", text
    return None


def _compared(losses: Any, steps: Any, config: AuditConfig) -> dict[str, Any]:
    """Return the weight of the full arm and, from two seeds on, the bounds."""
    full, short, hybrid = losses
    ways = [float(np.interp(k, [s, n], [0.0, 1.0])) for n, s, k in np.log(steps.T)]
    control = short + np.array(ways) * (full - short)
    worth = control - full
    contrast = hybrid - full - (config.margin or (1.0 - config.retain) * worth)
    samples = {"contrast": contrast, "gain": control - hybrid, "worth": worth}
    tests = samples if len(ways) > 1 else {}
    return {"way": fmean(ways), **{k: bounds(v.tolist(), config.alpha) for k, v in tests.items()}}


def _counted(saving: float, differences: Any, config: AuditConfig, time: float | None) -> str:
    less = "fewer" if time is None or time < 1.0 else "more"
    seconds = "" if time is None else f"{percent(abs(1.0 - time))} {less} seconds, "
    sd = stdev(differences.tolist()) if len(differences) > 1 else None
    worse = config.sign * float(differences.mean())
    way = "worse" if worse > 0 else "better"
    difference = signed(abs(worse), sd).removeprefix("+")
    return f"{percent(saving)} fewer full steps, {seconds}{config.metric} {way} by {difference}"


def _finding(
    found: AuditVerdict, counted: str, config: AuditConfig, arm: str
) -> tuple[AuditOutcome, str]:
    if (found.saving or 0.0) < LEAST_SAVING:
        return AuditOutcome.NO_SAVING, "no full steps were saved, so there is no saving to prove"
    if found.seeds < FEW_SEEDS:
        return AuditOutcome.UNDECIDED, counted
    control = _control(found)
    assert found.contrast and found.gain and found.worth  # there are two seeds
    if found.worth.upper < (config.margin or 0.0):
        headline = f"no saving: simply shorten the run, {control} is as good as the full arm"
        return AuditOutcome.NO_SAVING, headline
    if found.contrast.lower > 0:
        return AuditOutcome.NO_SAVING, f"no saving: the {arm} arm is inferior to the full arm"
    if found.contrast.upper < 0 < found.gain.lower:
        return AuditOutcome.VERIFIED, f"verified saving at equal quality: {counted}"
    what = "inferior to the full arm"
    if found.contrast.upper < 0:
        what = f"better than its control, {control}"
    return AuditOutcome.UNDECIDED, f"not enough seeds to tell whether the {arm} arm is {what}"


def _control(found: AuditVerdict) -> str:
    if (found.way or 0.0) < LEAST_SAVING:
        return "the short arm, which takes as many full steps"
    return "plain training of as many full steps, interpolated between the short and the full arm"


def _explained(found: AuditVerdict, config: AuditConfig, arm: str) -> str:
    condition = f"lose less than {config.margin}"
    if config.margin is None:
        condition = f"keep {percent(config.retain)} of what the saved steps are worth"
    return (
        f"The {arm} arm took {percent(found.saving or 0.0)} fewer full steps than the full arm. It "
        f"has to {condition}, and to be better than its control: {_control(found)}. Paired "
        f"one-sided t tests over at least {FEW_SEEDS} seeds, each at level {config.alpha:g}."
    )


def signed(mean: float, sd: float | None) -> str:
    """Format a mean difference ± standard deviation, None of one value; no difference is +0."""
    return f"{0.0 + mean:+.3g}" if sd is None else f"{0.0 + mean:+.3g} ± {sd:.2g}"


def counted_seeds(number: int) -> str:
    """Format a number of seeds."""
    return "1 seed" if number == 1 else f"{number} seeds"
