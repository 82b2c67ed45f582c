"""The polynomials, and Halley's step, are the best ones for their intervals."""

import numpy as np
import pytest
from scipy.optimize import linprog

from hybrid_predict.tensors.polynomials import LEAST, POLYNOMIALS, halley


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


def sent(least, values):
    """Where the step that is best from a least singular value sends others."""
    step = halley(least)
    return values * (step.d + step.e / (1.0 + step.c * values**2))


@pytest.mark.parametrize("least", [0.9, 0.03, 1e-3])
def test_halley_s_step_is_the_best_on_its_interval(least):
    """It touches one inside and at the end, and its lowest value at the start and between these."""
    values = np.geomspace(least, 1.0, 200_001)
    found = sent(least, values)
    assert least < found.min()
    np.testing.assert_allclose([found.max(), found[-1]], 1.0, rtol=1e-6)
    peak = found[: len(found) * 3 // 4].argmax()
    np.testing.assert_allclose(found[[0, peak]], [found.min(), 1.0], rtol=1e-5)
    np.testing.assert_allclose(found[peak:].min(), found.min(), rtol=1e-5)
