"""The fitted predictor finds the coefficients that least squares gives."""

import numpy as np
import pytest
from cases import BACKEND_CASES

from hybrid_predict import ConfigError, FittedPredictor
from hybrid_predict.forecast.predictors.fitted import START
from hybrid_predict.forecast.window import Reading
from hybrid_predict.testing.predictors import SHAPES, History, steps

NAMES = tuple(SHAPES)
STEPS = 20
everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)


def history(backend="torch", count=6, **changes):
    made = History(FittedPredictor(**changes), BACKEND_CASES[backend])
    for arrays in steps(count=count):
        made.observe(arrays)
    return made


def read(directions, coefficients):
    """A window in which every tensor moved by these coefficients times its directions."""
    grams = []
    for k in range(len(NAMES)):
        basis = np.stack([np.ravel(d[k]) for d in directions])
        moved = STEPS * (np.asarray(coefficients[k]) @ basis)
        columns = np.concatenate([moved[None], basis[:1], basis])
        grams.append(columns @ columns.T)
    empty = np.zeros(len(NAMES))
    return Reading("hidden", 0, NAMES, STEPS, np.stack(grams), empty, empty)


def directions(made):
    dump = made.case.dump
    return [[dump(x) for x in each] for each in made.predictor.directions(made.state)]


@everywhere
def test_before_the_first_window_it_is_half_the_first_drift(backend):
    made = history(backend, decays=(0.9, 0.5), last=True)
    first = directions(made)[0]
    for found, drift in zip(made.forecast(2.0), first, strict=True):
        np.testing.assert_allclose(found, START * 2.0 * drift, rtol=1e-9)


@everywhere
@pytest.mark.parametrize(
    ("decays", "last", "wanted"),
    [((0.9,), False, [0.4]), ((0.9, 0.3), False, [0.3, 0.1]), ((0.9,), True, [0.4, -0.05])],
)
def test_coefficients_that_explain_everything_are_found(backend, decays, last, wanted):
    made = history(backend, decays=decays, last=last, ridge=0.5)
    basis = directions(made)
    for _ in range(3):
        made.predictor.fit(made.state, read(basis, [wanted] * len(NAMES)))
    for k, found in enumerate(made.forecast()):
        mixed = sum(c * d[k] for c, d in zip(wanted, basis, strict=True))
        np.testing.assert_allclose(found, mixed, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("ridge", "near"), [(0.0, "own"), (1e9, "shared")])
def test_the_ridge_leads_from_own_coefficients_to_shared_ones(ridge, near):
    made = history(ridge=ridge)
    basis, own = directions(made), [[0.2], [0.4], [0.6], [0.8]]
    reading = read(basis, own)
    made.predictor.fit(made.state, reading)
    found = [made.state.numbers[name][0] for name in NAMES]
    shared = reading.targets.sum() / reading.directions.sum()
    wanted = np.ravel(own) if near == "own" else [shared] * len(NAMES)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_forecast_is_never_longer_than_the_drift():
    made = history(ridge=0.0)
    basis = directions(made)
    made.predictor.fit(made.state, read(basis, [[3.0]] * len(NAMES)))
    for found, drift in zip(made.forecast(), basis[0], strict=True):
        np.testing.assert_allclose(found, drift, rtol=1e-6)


def test_old_windows_count_less():
    made = history(ridge=0.0, memory=0.5)
    basis = directions(made)
    for coefficient in (0.2, 0.8):
        made.predictor.fit(made.state, read(basis, [[coefficient]] * len(NAMES)))
    found = [made.state.numbers[name][0] for name in NAMES]
    np.testing.assert_allclose(found, (0.5 * 0.2 + 0.8) / 1.5, rtol=1e-6)


def test_a_tensor_that_did_not_move_has_no_forecast():
    made = history(decays=(0.9, 0.3))
    basis = directions(made)
    made.predictor.fit(made.state, read(basis, [[0.0, 0.0]] * len(NAMES)))
    for found in made.forecast():
        np.testing.assert_allclose(found, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [("decays", ()), ("decays", (1.0,)), ("ridge", -1.0), ("memory", 1.5), ("last", 1),
     ("gated", None)],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        FittedPredictor(**{name: value})
