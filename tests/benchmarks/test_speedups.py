"""Plain steps to reach a loss, speedups and their intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speedups import speedup
from hybrid_predict.runs.evidence import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    PlainSteps,
    plain_steps_to_reach,
)

STEPS = (300, 400, 600, 1200)
FALLING = (4.0, 3.0, 2.0, 1.0)
INF = math.inf


@pytest.mark.parametrize(
    ("losses", "loss", "expected"),
    [
        (FALLING, 3.0, PlainSteps(400)),
        (FALLING, 1.0, PlainSteps(1200)),
        (FALLING, 4.1, PlainSteps(300, AT_MOST)),
        (FALLING, 0.9, PlainSteps(1200, AT_LEAST)),
        (FALLING, math.nan, PlainSteps(300, AT_MOST)),
        # Longer runs that end higher are nobody's choice.
        ((4.0, 3.0, 3.5, 2.0), 2.5, PlainSteps(math.sqrt(400 * 1200))),
        ((1.0, 2.0, 3.0, 4.0), 0.5, PlainSteps(300, AT_LEAST)),
        ((4.0, 3.0, 2.0, INF), 1.9, PlainSteps(600, AT_LEAST)),
        # A plain run that diverged tells nothing.
        ((INF, 3.0, 2.0, math.nan), 3.0, PlainSteps(400)),
        ((INF, INF, INF, INF), 3.0, PlainSteps(300, AT_MOST)),
    ],
)
def test_plain_steps_to_reach(losses, loss, expected):
    result = plain_steps_to_reach(STEPS, losses, loss)
    assert result.bound == expected.bound
    assert result.steps == pytest.approx(expected.steps)


@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=6, unique=True),
    st.floats(0, 1),
)
def test_plain_steps_to_reach_inverts_the_curve(losses, share):
    losses = sorted(losses, reverse=True)
    steps = [100 * 2**k for k in range(len(losses))]
    wanted = steps[0] * (steps[-1] / steps[0]) ** share
    loss = float(np.interp(math.log(wanted), np.log(steps), losses))
    result = plain_steps_to_reach(steps, losses, loss)
    back = float(np.interp(math.log(result.steps), np.log(steps), losses))
    assert back == pytest.approx(loss, abs=1e-9)


def curve(seeds):
    """Losses of plain runs by budget and seed."""
    rng = np.random.default_rng(3)
    return [[3 - math.log(n / 300) + 0.02 * rng.normal() for _ in range(seeds)] for n in STEPS]


@pytest.mark.parametrize(
    ("seeds", "losses", "costs", "value", "bound"),
    [
        (5, None, [400] * 5, 3.0, EXACT),
        (5, None, [600, 800, 800, 800, 1000], 1.5, EXACT),
        (1, [0.0], [400], 3.0, AT_LEAST),
        (3, [1.0, INF, 1.0], [400] * 3, 0.75, AT_MOST),
    ],
)
def test_speedup_is_plain_steps_over_full_steps(seeds, losses, costs, value, bound):
    plain = curve(seeds)
    result = speedup(STEPS, plain, losses or plain[3], costs)
    assert (result.value, result.bound) == (pytest.approx(value), bound)
    assert (result.low is None, result.seeds) == (seeds == 1, seeds)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng, rounds, hits = np.random.default_rng(0), 100, 0
    true = [3 - math.log(n / 300) for n in STEPS]
    for _ in range(rounds):
        noise = 0.02 * rng.normal(size=(5, 5))
        plain = [[mean + e for e in row] for mean, row in zip(true, noise, strict=False)]
        losses = [3 - math.log(500 / 300) + e for e in noise[4]]
        result = speedup(STEPS, plain, losses, [400] * 5, resamples=400)
        hits += result.low <= 1.25 <= result.high
    assert 0.88 <= hits / rounds <= 1.0
