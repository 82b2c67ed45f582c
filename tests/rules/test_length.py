"""How long corrected updates are; `tests/updates/test_spectral.py` has the naive rule."""

import pytest

from hybrid_predict.rules.length import STRETCH, stretch


@pytest.mark.parametrize(
    ("shape", "wanted"), [((4, 4), 1.0), ((3, 5), 1.0), ((6, 3), 2**0.5), ((90, 3), STRETCH)]
)
def test_tall_matrices_move_further(shape, wanted):
    assert stretch(*shape) == wanted
