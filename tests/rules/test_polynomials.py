"""The polynomials are the best ones for their intervals."""

import numpy as np
import pytest
from scipy.optimize import linprog

from hybrid_predict.rules.polynomials import LEAST, POLYNOMIALS


def best(least, most):
    """The odd quintic that is nearest to one on an interval, and its largest error."""
    x = np.linspace(least, most, 4001)
    powers, ones = np.stack([x, x**3, x**5], 1), np.ones((len(x), 1))
    solution = linprog(
        [0, 0, 0, 1],
        A_ub=np.block([[powers, -ones], [-powers, -ones]]),
        b_ub=np.concatenate([np.ones(len(x)), -np.ones(len(x))]),
        bounds=[(None, None)] * 3 + [(0, None)],
        method="highs",
    )
    return solution.x[:3], solution.x[3]


@pytest.mark.parametrize("count", POLYNOMIALS)
def test_every_polynomial_is_the_best_on_what_the_ones_before_it_leave(count):
    least, most = LEAST[count], 1.0
    for coefficients in POLYNOMIALS[count]:
        wanted, error = best(least, most)
        np.testing.assert_allclose(coefficients, wanted, atol=1e-4)
        least, most = 1 - error, 1 + error


@pytest.mark.parametrize("count", POLYNOMIALS)
def test_singular_values_that_are_not_small_end_between_0_7_and_1_3(count):
    values = np.linspace(LEAST[count], 1.0, 1000)
    for a, b, c in POLYNOMIALS[count]:
        values = a * values + b * values**3 + c * values**5
    assert 0.7 < values.min() < values.max() < 1.3
