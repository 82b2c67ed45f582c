"""Plain steps to reach a loss, speedups and their intervals, at one rate and at several."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.arms import ARMS
from benchmarks.gains import (
    AT_LEAST,
    AT_MOST,
    EXACT,
    Ratio,
    Summary,
    plain_steps_to_reach,
    speedup,
)
from benchmarks.studies import rates
from benchmarks.studies.rates import LENGTHS, points
from benchmarks.tasks import TASKS

STEPS = (300, 400, 600, 1200)
FALLING = (4.0, 3.0, 2.0, 1.0)
INF = math.inf


@pytest.mark.parametrize(
    ("losses", "loss", "expected"),
    [
        (FALLING, 3.0, Ratio(400)),
        (FALLING, 4.1, Ratio(300, AT_MOST)),
        (FALLING, 0.9, Ratio(1200, AT_LEAST)),
        (FALLING, math.nan, Ratio(300, AT_MOST)),
        # Longer runs that end higher are nobody's choice.
        ((4.0, 3.0, 3.5, 2.0), 2.5, Ratio(math.sqrt(400 * 1200))),
        # A plain run that diverged tells nothing.
        ((INF, 3.0, 2.0, math.nan), 3.0, Ratio(400)),
        ((INF, INF, INF, INF), 3.0, Ratio(300, AT_MOST)),
    ],
)
def test_plain_steps_to_reach(losses, loss, expected):
    result = plain_steps_to_reach(STEPS, losses, loss)
    assert result.bound == expected.bound
    assert result.value == pytest.approx(expected.value)


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
    back = float(np.interp(math.log(result.value), np.log(steps), losses))
    assert back == pytest.approx(loss, abs=1e-9)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    rounds = 100
    hits = 0
    true = [3 - math.log(n / 300) for n in STEPS]
    for _ in range(rounds):
        noise = 0.02 * rng.normal(size=(5, 5))
        plain = [[mean + e for e in row] for mean, row in zip(true, noise, strict=False)]
        losses = [3 - math.log(500 / 300) + e for e in noise[4]]
        result = speedup(STEPS, plain, losses, [400] * 5, resamples=400)
        hits += result.low <= 1.25 <= result.high
    assert 0.88 <= hits / rounds <= 1.0


def row(arm, steps, seed, loss, full_steps, task="mlp", setting="tuned", **others):
    place = {"task": task, "setting": setting, "arm": arm, "steps": steps, "seed": seed}
    recipe = {"rate": 0.004, "hidden": 1.0, "decay": True, "recipe": "r"}
    counts = {"full_steps": full_steps, "predicted_steps": 0}
    return {**place, **recipe, **counts, "loss": loss, **others}


@pytest.mark.parametrize(
    ("losses", "cost", "value", "bound"),
    [
        ([3.0, 3.0], 400, 1.5, EXACT),
        ([0.5, 0.5], 400, 6.0, AT_LEAST),
        ([3.0, None], 200, 1.0, AT_MOST),  # a run that diverged costs all its planned steps
        ([3.0], 400, 1.5, EXACT),
    ],
)
def test_an_arm_is_read_off_all_plain_runs_of_its_task(losses, cost, value, bound):
    curve = {400: 4.0, 600: 3.0, 1200: 2.0, 2400: 1.0}
    rows = [row("plain", t, seed, y, t) for t, y in curve.items() for seed in (0, 1)]
    rows += [row("corrected", 600, seed, y, cost) for seed, y in enumerate(losses)]
    rows += [row("plain", 600, seed, 0.0, 600, task="cnn") for seed in (0, 1)]
    if None in losses:
        rows[-3]["full_steps"] = 50
        value = 400 / 300
    found = Summary(rows).figures("mlp", "corrected").speedup
    assert (found.bound, found.seeds) == (bound, len(losses))
    assert found.value == pytest.approx(value)
    assert (found.low is None) == (len(losses) == 1)


def at_share(arm, length, loss, full_steps=None, predicted=0, share=0.1):
    full = full_steps or round(TASKS["mlp"].steps * length)
    steps = round(TASKS["mlp"].steps * length / ARMS[arm].share)
    more = {"predicted_steps": predicted, "rate": rates.best_rates()["mlp"] * share}
    return row(arm, steps, 0, loss, full, setting=rates.RATES, **more)


ROWS = [
    *(at_share("plain", n, loss) for n, loss in ((0.5, 3.0), (1, 2.0), (2, 1.0), (4, 0.5))),
    *(at_share("corrected", n, loss) for n, loss in ((0.25, 3.0), (0.5, 2.0), (1, 1.0))),
    at_share("auto", 1, 1.0, full_steps=200, predicted=600),
    *(at_share("plain", n, loss, share=1.0) for n, loss in ((0.5, 1.5), (1, 1.0))),
]


def test_gain_at_a_share_of_the_best_rate_is_read_off_runs_at_that_rate():
    steps = TASKS["mlp"].steps
    found = {(p.arm, p.share): p for p in points(ROWS)}
    plain, corrected, auto = (found[arm, 0.1] for arm in LENGTHS)
    assert (plain.gain, plain.beside_tuned.bound) == (Ratio(1.0), "≤")
    assert plain.beside_tuned.value == pytest.approx(0.5)
    assert corrected.gain.value == pytest.approx(2.0)
    assert corrected.beside_corrected == Ratio(1.0)
    assert (auto.runs.full_steps, auto.runs.mean("predicted_steps")) == (200, 600)
    assert auto.gain.value == pytest.approx(2 * steps / 200)
    assert auto.beside_corrected.value == auto.beside_tuned.value == pytest.approx(steps / 200)
