"""The test over many verdicts: what counts, what ends predicted steps, and how often by mistake."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hybrid_predict.policy.verdict import LEVEL, MOST_LOST, Evidence, Slopes

DOWNHILL = Slopes(-2.0, 4.0, -3.0, 9.0)
"""Both movements go downhill, each by 1 per unit of length."""

UPHILL = DOWNHILL._replace(product=2.0)


@pytest.mark.parametrize("factor", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("share", "lost"), [(0.99, True), (1.01, False), (-1.0, True)])
def test_the_limit_is_a_share_of_the_full_step_s_own_steepness(share, lost, factor):
    slopes = Slopes(-2.0 * 0.1 * share * factor, 4.0, -3.0 * factor, 9.0)
    evidence = Evidence()
    evidence.weigh(slopes)
    assert (evidence.wealth > 0.5) is lost


@pytest.mark.parametrize(
    "changes",
    [{"own_product": 3.0}, {"square": 0.0, "product": 0.0}, {"square": math.nan}],
    ids=str,
)
def test_what_tells_nothing_does_not_count(changes):
    evidence = Evidence()
    evidence.weigh(UPHILL)
    before = replace(evidence)
    evidence.weigh(UPHILL._replace(**changes))
    assert evidence == before


def share_ended(chance):
    """Share of 500 simulated runs that the test ends, for verdicts that are lost by this chance."""
    ended = 0
    for lost in np.random.default_rng(0).random((500, 300)) < chance:
        evidence = Evidence()
        for each in lost:
            evidence.weigh(UPHILL if each else DOWNHILL)
        ended += evidence.ended
    return ended / 500


def test_sound_steps_end_no_more_often_than_stated():
    assert share_ended(MOST_LOST) <= LEVEL
    assert share_ended(0.5) > 0.99
