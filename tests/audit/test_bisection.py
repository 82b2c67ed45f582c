"""Bisection over candidates, and the error rate of a whole search by simulation."""

import numpy as np
import pytest

from hybrid_predict.audit import AuditConfig, AuditOutcome, judge_audit
from hybrid_predict.audit.searching import WAYS, bisect, number_of_tests
from hybrid_predict.audit.verdict import PairedSeed


@pytest.mark.parametrize("count", range(1, 12))
def test_every_border_is_found_in_as_many_tests_as_promised(count):
    longest = 0
    for border in range(count + 1):
        tested = []

        def passes(k, border=border, tested=tested):
            tested.append(k)
            return k < border

        bisect(range(count), passes)
        assert max((k for k in tested if k < border), default=-1) == border - 1
        assert min((k for k in tested if k >= border), default=count) == border
        longest = max(longest, len(tested))
    ladder = AuditConfig(speedups=[2.0 + k for k in range(count)])
    assert number_of_tests(ladder) == len(WAYS) * longest


SPEEDUPS = (1.25, 1.5, 2.0, 3.0)
FULL, RETAIN = 600, 0.8


def plain(steps):
    """Loss of plain training of so many full steps."""
    return float(2.0 * steps**-0.3)


def searched(rng, seeds, border, alpha):
    """One search on a made-up task whose candidates below ``border`` are as good as full.

    The others keep exactly the share of the saved steps' worth that just does not suffice.
    """
    config = AuditConfig(retain=RETAIN, alpha=alpha)
    shared = rng.normal(0, 0.02, seeds)  # of a seed's data and initial weights

    def runs(loss):
        return loss + shared + rng.normal(0, 0.003, seeds)

    full, passed = runs(plain(FULL)), []

    def passes(number):
        steps = round(FULL / SPEEDUPS[number])
        kept = 1.0 if number < border else RETAIN
        short = runs(plain(steps))
        hybrid = runs(plain(steps) + kept * (plain(FULL) - plain(steps)))
        paired = [
            PairedSeed(f, s, h, FULL, steps, steps)
            for f, s, h in zip(full, short, hybrid, strict=True)
        ]
        verified = judge_audit(paired, config).outcome is AuditOutcome.VERIFIED
        passed.extend([number] * verified)
        return verified

    bisect(range(len(SPEEDUPS)), passes)
    return max(passed, default=None)


@pytest.mark.parametrize("border", [0, 1, 2])
def test_a_search_rarely_answers_with_more_than_keeps_quality(border):
    rng, trials, alpha = np.random.default_rng(border), 400, 0.1
    each = 2 * alpha / number_of_tests(AuditConfig(speedups=SPEEDUPS))  # one of the two arms
    answers = [searched(rng, 6, border, each) for _ in range(trials)]
    wrong = sum(best is not None and best >= border for best in answers)
    # Three standard errors of a share of 400 above what is promised.
    assert wrong / trials < alpha + 3 * np.sqrt(alpha * (1 - alpha) / trials)
