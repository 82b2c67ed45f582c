"""How long corrected updates are; `tests/updates/test_spectral.py` has them in a run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict.updates.length import lengths

SIZES = st.floats(1e-6, 1e6)
NEAR = 1e-9
"""Length of an update in usual lengths that leaves room for any factor."""


def factor(own, along, slope, usual=NEAR, bound=1e8, period=1):
    """The length of one corrected update, in lengths of the optimizer's update."""
    columns = (np.array([value]) for value in (own, usual, along, slope))
    with np.errstate(all="ignore"):
        (length,) = lengths(np, *columns, bound, period)
    return float(length) / own if own else float(length)


@given(st.lists(st.tuples(SIZES, st.floats(-1, 1), st.floats(1e-3, 1)), min_size=1, max_size=5))
def test_with_room_updates_go_downhill_at_least_as_steeply_as_the_optimizer_s(rows):
    """Each row has a length, and both slopes along the averaged gradient."""
    own, along, slopes = np.array(rows).T * np.array([[1], [1], [-1]])
    along = own * along
    found = lengths(np, own, np.full_like(own, NEAR), along, slopes, 1e8, 1)
    assert (found * slopes).sum() <= along.sum() + 1e-9 * own.sum()
    assert (found >= own * (1 - 1e-12)).all()


@given(SIZES, st.floats(-1, 1), st.floats(1e-3, 1), st.floats(1e-3, 1e3), st.floats(1, 100))
def test_they_are_as_long_as_the_optimizer_s_or_longer_within_bounds(
    own, cosine, slope, usual, bound
):
    found = factor(own, own * cosine, -slope, usual, bound)
    assert found == pytest.approx(max(1.0, min(bound, 1 / usual, -cosine / slope)))


@pytest.mark.parametrize(
    ("along", "slope"),
    [
        (-1.0, 0.5),  # uphill
        (-1.0, 0.0),  # a zero direction or average
        (0.0, 0.0),
        (1.0, -0.5),  # the optimizer goes uphill
        (-1e300, -1e-300),  # the ratio overflows
        (np.nan, -0.5),
    ],
)
def test_without_a_ratio_the_length_is_the_optimizer_s(along, slope):
    assert factor(1.0, along, slope) == 1.0
    assert factor(0.0, 0.0, slope, 0.0) == 0.0
