"""How long corrected updates are."""

import math

import numpy as np
import pytest

from hybrid_predict.rules.length import (
    MAGNIFY,
    MUON_RATE,
    STRETCH,
    longest_update,
    magnification,
    stretch,
)


@pytest.mark.parametrize(
    ("shape", "wanted"), [((4, 4), 1.0), ((3, 5), 1.0), ((6, 3), 2**0.5), ((90, 3), STRETCH)]
)
def test_tall_matrices_move_further(shape, wanted):
    assert stretch(*shape) == wanted


@pytest.mark.parametrize("size", [1e-30, 1e-4, 0.01, 10.0])
def test_the_longest_updates_are_as_long_as_those_of_muon(size):
    shapes, lengths = [(4, 4), (6, 3)], size * np.array([3.0, 4.0])
    longest = longest_update(lengths, np.float64(0.0))
    assert longest == pytest.approx(5.0 * size)
    assert longest_update(0.5 * lengths, longest) == longest
    rate = longest / math.sqrt(4 + 3)  # of the Muon whose updates are as long
    wanted = min(MAGNIFY, max(1.0, MUON_RATE / rate))
    assert magnification(shapes, longest) == pytest.approx(wanted)
