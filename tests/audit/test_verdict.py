"""The verdict of an audit over hand-made numbers."""

import math

import numpy as np
import pytest
from scipy import stats

from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.verdict import AuditOutcome, judge_audit
from hybrid_predict.errors import ConfigError

VERIFIED, NO_SAVING, UNDECIDED = AuditOutcome

NOISE = (-0.01, -0.005, 0.0, 0.005, 0.01)


def paired(full, short, hybrid, steps=1200.0):
    """The full, the short and the hybrid arm of a seed."""
    columns = zip((full, short, hybrid), (1800, 1200, steps), strict=True)
    return [{"metric": metric, "full_steps": number} for metric, number in columns]


def seeds(full=1.0, short=1.2, hybrid=1.0, steps=1200.0, noise=NOISE):
    """Arms at the given metrics; only the hybrid arm scatters."""
    return [paired(full, short, None if hybrid is None else hybrid + e, steps) for e in noise]


def plain(steps):
    """A hybrid arm that took plain steps only, of a loss that is linear in their logarithm."""
    loss = 1.0 + 0.2 * math.log(1800 / steps) / math.log(1.5)
    return seeds(hybrid=loss, steps=steps)


def scattered(short, hybrid, noise):
    """Seeds whose arms scatter in opposite directions, by a number of times the noise."""
    return [paired(1.0, short + noise[0] * e, hybrid + noise[1] * e) for e in NOISE]


CASES = {
    "equal to full": (seeds(), {}, VERIFIED, "verified saving at equal quality: 33 % fewer"),
    "within the margin": (seeds(hybrid=1.05), {"margin": 0.1}, VERIFIED, "verified"),
    "short better than full": (seeds(short=0.9), {}, NO_SAVING, "simply shorten the run"),
    "no gain over short": (
        scattered(1.06, 1.05, (10, 1)), {"margin": 0.1}, UNDECIDED, "is better than its control"
    ),
    "nothing saved": (seeds(steps=1790.0), {}, NO_SAVING, "no full steps were saved"),
    "a plain run of 95 % within the margin": (
        plain(1710.0), {"margin": 0.1}, NO_SAVING, "plain training of as many"
    ),
    "hybrid diverged": (seeds(hybrid=None), {}, NO_SAVING, "hybrid arm has no finite"),
    "4 seeds": (seeds(noise=NOISE[:4]), {}, UNDECIDED, "hint from 4 seeds: 33 % fewer"),
}  # fmt: skip


@pytest.mark.parametrize(("arms", "options", "outcome", "words"), CASES.values(), ids=CASES)
def test_outcome_whether_less_or_more_is_better(arms, options, outcome, words):
    verdict = judge_audit(arms, AuditConfig(**options))
    assert verdict.outcome is outcome
    assert words in verdict.headline
    assert verdict.seeds == len(arms)
    turned = [
        [{**run, "metric": run["metric"] and -run["metric"]} for run in runs] for runs in arms
    ]
    more = judge_audit(turned, AuditConfig(**options, mode="max"))
    assert (more.outcome, more.contrast) == (verdict.outcome, verdict.contrast)


@pytest.mark.parametrize(("alpha", "margin"), [(0.05, None), (0.3, 0.03)])
def test_tests_are_those_of_scipy(alpha, margin):
    """Bounds and decision agree with scipy's one-sided t tests, written as ratios of effects."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        full, short, hybrid = (rng.normal([[1.0], [1.1], [1.015]], 0.02, (3, 6))).tolist()
        arms = [paired(*metrics) for metrics in zip(full, short, hybrid, strict=True)]
        config = AuditConfig(alpha=alpha, margin=margin, retain=0.7)
        verdict = judge_audit(arms, config)
        f, s, h = map(np.array, (full, short, hybrid))
        against = f + margin if margin else 0.7 * f + 0.3 * s
        less = stats.ttest_rel(h, against, alternative="less").pvalue < alpha
        more = stats.ttest_rel(h, against, alternative="greater").pvalue < alpha
        better = stats.ttest_rel(h, s, alternative="less").pvalue < alpha
        spare = stats.ttest_1samp(s - f, margin or 0.0, alternative="less").pvalue < alpha
        expected = VERIFIED if less and better else UNDECIDED
        assert verdict.outcome is (NO_SAVING if more or spare else expected)
        assert (verdict.contrast.upper < 0) == less
        low, high = stats.ttest_rel(h, against).confidence_interval(1 - 2 * alpha)
        assert (verdict.contrast.lower, verdict.contrast.upper) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("steps", "way", "control"),
    [(1000, 0.0, 1.2), (1200, 0.0, 1.2), (math.sqrt(1200 * 1800), 0.5, 1.1), (1800, 1.0, 1.0),
     (2000, 1.0, 1.0)],
)  # fmt: skip
def test_control_is_plain_training_of_the_hybrid_arms_full_steps(steps, way, control):
    verdict = judge_audit(seeds(steps=steps), AuditConfig())
    assert verdict.way == pytest.approx(way)
    means = (verdict.worth.mean, verdict.gain.mean)
    assert means == pytest.approx((control - 1.0, control - 1.0))
    assert ("which takes as many full steps" in verdict.text) == (way == 0.0)
    assert ("as many full steps, interpolated" in verdict.text) == (way > 0)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("mode", "lower"), ("speedup", 1.0), ("margin", math.nan), ("hybrid", {"perod": 2}),
        ("speedups", (2.0, 1.5)), ("controls", {"full": {"key": 1}}), ("controls.a", {"a": 3}),
    ],
)  # fmt: skip
def test_bad_configuration_is_refused_by_name(argument, value):
    with pytest.raises(ConfigError) as raised:
        AuditConfig(**{argument.partition(".")[0]: value})
    assert raised.value.argument == argument
