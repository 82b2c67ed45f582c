"""Every rule finds the same on plain numbers, and on arrays of NumPy and JAX in 32 bits."""

import math
from functools import partial, reduce

import numpy as np
import pytest
import torch
from libraries import in_every_library

from hybrid_predict import HybridConfig
from hybrid_predict.rules import limits, pace, schedule, skill, verdict

NAN, INF = math.nan, math.inf


def limited(start, *numbers):
    found = start
    for step, (loss, norm, warmup) in enumerate(numbers, 1):
        found = limits.learned(found, loss, (norm,), warmup)
        found = limits.alarmed(found, 0 * found.until + step) if step % 6 == 0 else found
    paused = limits.pausing(found, found.until)
    return found, limits.loss_limit(found), limits.norm_limits(found), paused, limits.risen(found)


READINGS = [(1.0 + 0.1 * (-1) ** k, 5.0 + k % 3, False) for k in range(12)]
READINGS += [(NAN, 0.0, False), (1e9, 1e9, False), (1.5, INF, True)]


def paced(start, slopes, end, *windows, planned=False):
    follow = partial(pace.follow, planned=planned)
    before = reduce(follow, windows[:-1], start)
    return follow(pace.weigh(before, slopes, end, 2.0, False), windows[-1])


def planned(*arguments):
    return paced(*arguments, planned=True)


def windows_of(*persistences):
    """Windows with these persistences."""
    return [pace.Lagged(6.0 * q, 0.0, 4.0, 9.0, 0.0) for q in persistences]


STEEP, FLAT = (verdict.Slopes(-steep, 1.0, -1.0, 1.0) for steep in (2.0, pace.NEAR.worth))


def per_full_step(*advances):
    number = pace.per_full_step(zip((100, 7, 50), advances, strict=True))
    return number, [pace.length(advance, number) for advance in advances]


def skilled(start, *windows):
    found = reduce(skill.add_window, windows, start)
    return found, skill.known(found), skill.lower(found), skill.enough(found)


POOLED = [
    skill.Pooled(0.035 * k, 0.25, 0.49, 1.0, 0.001225 * k, 0.49) for k in (-2, -1, 0, 1, 2, 3)
]
POOLED.insert(4, POOLED[0]._replace(moved=NAN))


def fitted(sums, first, second):
    sums = skill.add_squares(skill.add_squares(sums, first, 20, 0.8), second, 20, 0.8)
    return sums, skill.fit(sums, 0.3)


COLUMNS = np.random.default_rng(0).normal(size=(2, 4, 3, 6))
GRAMS = COLUMNS @ COLUMNS.transpose(0, 1, 3, 2)
PLANNED = schedule.schedule(
    HybridConfig(speedup="auto", total_steps=40, warmup_steps=5, cooldown_steps=4)
)

RULES = {
    "limits": (limited, limits.first_limits(1), *READINGS),
    "rising pace": (paced, pace.Pace(), STEEP, 1.0, *windows_of(*[0.5] * 7)),
    "rising planned pace": (planned, pace.Pace(), STEEP, -1.0, *windows_of(*[0.5] * 3)),
    "falling planned pace": (planned, pace.Pace(), STEEP, 1.0, *windows_of(*[0.5] * 3)),
    "falling pace": (paced, pace.Pace(), STEEP, 1.0, *windows_of(1.0, 1.0, -0.1, -0.1)),
    "no pace": (paced, pace.Pace(), STEEP, 1.0, *windows_of(-0.3, 0.0, 0.01)),
    "changing pace": (paced, pace.Pace(), FLAT, 1.0, *windows_of(1.0, 0.1, 1.0, -1.0, 0.7)),
    "no momentum": (pace.carried, 0.0, 20, 10),
    "momentum": (pace.carried, 0.99, 20, 10),
    "long steps": (per_full_step, 0.5, pace.MOST, 0.0),
    "no steps": (per_full_step, 0.0, 0.0, 0.0),
    "hardly any steps": (per_full_step, 0.0, 0.1 * pace.LEAST, 0.0),
    **{
        f"{credit} due at {position}": (pace.paced, PLANNED, position, credit)
        for position in (4, 5, 34, 35, 36)
        for credit in (0.99, 4.9)
    },
    "skill": (skilled, skill.Skill(), *POOLED),
    "lengths": (fitted, np.zeros((4, 2)), *GRAMS),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", RULES)
def test_every_library_finds_the_same(name):
    rule, *arguments = RULES[name]
    wanted, *others = in_every_library(rule, *arguments)
    for found in others:
        for left, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_evidence_is_the_same_in_every_library(make):
    bad = verdict.Slopes(2.0, 4.0, -3.0, 9.0)
    good, odd = bad._replace(product=-2.0), bad._replace(own_product=NAN)
    seen = [bad, good, odd, *[bad] * 6]
    ours = verdict.Evidence(*(make(x) for x in verdict.Evidence()))
    theirs = verdict.Evidence()
    for slopes in seen:
        ours = verdict.weigh(ours, verdict.Slopes(*(make(x) for x in slopes)))
        theirs = verdict.weigh(theirs, slopes)
        assert [float(x) for x in ours] == pytest.approx(list(theirs), rel=1e-6)
    assert theirs.ended == 1.0
    for found in in_every_library(partial(reduce, verdict.weigh), seen, verdict.Evidence()):
        assert found == pytest.approx(list(theirs), rel=1e-6)
