"""What the registered predictors forecast, on every backend."""

import dataclasses

import numpy as np
import pytest
import torch
from cases import BACKEND_CASES
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import (
    ConfigError,
    FittedPredictor,
    MomentumPredictor,
    PredictorError,
    WeightDelta,
)
from hybrid_predict.forecast.predictors import PREDICTORS, make_predictor
from hybrid_predict.forecast.predictors.contract import check_delta
from hybrid_predict.testing.backends import NUMPY, NUMPY_NARROW, TORCH_NARROW
from hybrid_predict.testing.predictors import SHAPES, History, steps

DECAY, LAMBDA = 0.8, 0.7

everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)


def momentum(backend, **changes):
    predictor = MomentumPredictor(**{"decay": DECAY, "coefficient": LAMBDA, **changes})
    return History(predictor, BACKEND_CASES[backend])


def averaged(displacements):
    """The drift, summed term by term."""
    drift = [np.zeros(shape) for shape in SHAPES.values()]
    for t, arrays in enumerate(displacements, 1):
        decay = min(DECAY, 1 - 1 / t)
        drift = [decay * d + (1 - decay) * x for d, x in zip(drift, arrays, strict=True)]
    return drift


@everywhere
@given(count=st.integers(1, 12), rate=st.floats(0, 50))
def test_momentum_forecasts_coefficient_times_rate_times_drift(backend, count, rate):
    history, displacements = momentum(backend), steps(count=count)
    for arrays in displacements:
        history.observe(arrays)
    for found, drift in zip(history.forecast(rate), averaged(displacements), strict=True):
        np.testing.assert_allclose(found, LAMBDA * rate * drift, rtol=1e-9, atol=1e-12)


@everywhere
def test_the_first_displacements_are_averaged_with_equal_weights(backend):
    history, displacements = momentum(backend, coefficient=1.0), steps(count=4)
    for arrays in displacements:
        history.observe(arrays)
    for found, *seen in zip(history.forecast(), *displacements, strict=True):
        np.testing.assert_allclose(found, np.mean(seen, axis=0), rtol=1e-9, atol=1e-12)


@everywhere
def test_every_tensor_moves_by_its_own_rate(backend):
    history = momentum(backend)
    history.observe(steps(count=1)[0])
    rates = [0.0, 1.0, 3.0, -2.0]
    each, one = history.forecast(rates), history.forecast(1.0)
    for rate, found, unit in zip(rates, each, one, strict=True):
        np.testing.assert_allclose(found, rate * unit, rtol=1e-9)


@everywhere
@pytest.mark.parametrize("coefficient", [0.0, -1.0])
def test_a_coefficient_may_turn_a_forecast_off_or_around(backend, coefficient):
    history = momentum(backend, coefficient=coefficient)
    arrays = steps(count=1)[0]
    history.observe(arrays)
    for found, x in zip(history.forecast(), arrays, strict=True):
        np.testing.assert_allclose(found, coefficient * x, rtol=1e-9)


def test_a_drift_in_bfloat16_is_the_reference_rounded_at_every_step():
    predictor = MomentumPredictor(decay=DECAY)
    cases = (TORCH_NARROW, NUMPY_NARROW, NUMPY)
    found, wanted, exact = (History(predictor, case) for case in cases)
    for arrays in steps(count=12):
        for history in (found, wanted, exact):
            history.observe(arrays)
    assert {x.dtype for x in found.state.arrays["drift"]} == {torch.bfloat16}
    for got, twin, plain in zip(*(h.forecast() for h in (found, wanted, exact)), strict=True):
        size = np.abs(plain).max()
        np.testing.assert_allclose(got, twin, atol=2.0**-7 * size)
        assert 0 < np.abs(got - plain).max() < 0.05 * size


@pytest.mark.parametrize("decay", [0.8, 0.95])
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_rounding_to_bfloat16_does_not_bias_a_noisy_drift(decay, noise):
    predictor, shape = MomentumPredictor(decay=decay), {"matrix": (40, 50)}
    narrow, exact = (History(predictor, case, shape) for case in (NUMPY_NARROW, NUMPY))
    generator = np.random.default_rng(1)
    mean = generator.normal(size=(40, 50))
    for _ in range(150):
        moved = mean + noise * generator.normal(size=mean.shape)
        narrow.observe([moved])
        exact.observe([moved])
    (found,), (wanted,) = narrow.state.arrays["drift"], exact.state.arrays["drift"]
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)
    assert abs(np.vdot(found, wanted) / np.vdot(wanted, wanted) - 1) < 1e-3


SLOW = {
    "momentum": MomentumPredictor(decay=0.96),
    "fitted": FittedPredictor(decays=(0.5, 0.96)),
}


@everywhere
@pytest.mark.parametrize("name", PREDICTORS)
def test_a_decay_that_bfloat16_cannot_follow_is_refused(name, backend):
    case = BACKEND_CASES[backend]
    narrow = dataclasses.replace(case, backend=type(case.backend)("bfloat16"))
    predictor = SLOW[name]
    History(predictor, case)
    with pytest.raises(ConfigError, match=r"history_dtype: expected 'float32' for .*0\.95, got"):
        History(predictor, narrow)


NAN = float("nan")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("decay", value) for value in (-0.1, 1.0, NAN)),
        *(("coefficient", value) for value in (NAN, float("inf"))),
        ("gated", 1),
    ],
)
def test_hyperparameters_out_of_range_are_refused(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        MomentumPredictor(**{argument: value})


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_is_a_value_that_its_name_stands_for(name):
    made = make_predictor(name)
    assert made == PREDICTORS[name]()
    assert make_predictor(made) is made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.decay = 0.1


@pytest.mark.parametrize("choice", ["quadratic", None, 3])
def test_an_unknown_predictor_is_refused_with_the_known_names(choice):
    with pytest.raises(
        ConfigError, match="predictors: expected one of fitted, momentum, or an Abst"
    ):
        make_predictor(choice)


WEIGHT = torch.zeros(2, 3)
ILL_FORMED = {
    "no delta": (None, "a WeightDelta"),
    "name": (WeightDelta(("v",), (WEIGHT,), (1.0,)), "the names"),
    "shape": (WeightDelta(("w",), (WEIGHT.T,), (1.0,)), "shape"),
    "array": (WeightDelta(("w",), (WEIGHT.numpy(),), (1.0,)), "a tensor for w"),
    "device": (WeightDelta(("w",), (WEIGHT.to("meta"),), (1.0,)), "device cpu"),
    "factor": (WeightDelta(("w",), (WEIGHT,), ("long",)), "a number as factor"),
    "boolean": (WeightDelta(("w",), (WEIGHT,), (True,)), "a number as factor"),
    "factors": (WeightDelta(("w",), (WEIGHT,), (torch.ones(2),)), "a number as factor"),
}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_a_forecast_of_another_form_is_refused(name):
    delta, words = ILL_FORMED[name]
    with pytest.raises(PredictorError, match=f"MomentumPredictor.forecast: expected {words}"):
        check_delta(MomentumPredictor(), delta, ("w",), (WEIGHT,))


def test_a_factor_may_be_a_tensor_without_dimensions():
    delta = WeightDelta(("w",), (WEIGHT,), (torch.tensor(0.5),))
    check_delta(MomentumPredictor(), delta, ("w",), (WEIGHT,))
