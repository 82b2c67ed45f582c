"""What the registered predictors forecast, and the form that every forecast has."""

import dataclasses
import math

import pytest
import torch
from contract import PREDICTED, History, steps
from hypothesis import given
from hypothesis import strategies as st

from hybrid_predict import FittedPredictor, MomentumPredictor
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import PREDICTORS, make_predictor

DECAY, LAMBDA, NAN = 0.8, 0.7, math.nan


def observed(predictor, displacements, history="float32", shapes=PREDICTED):
    history = History(predictor, history, shapes)
    for displacement in displacements:
        history.observe(displacement)
    return history


def averaged(displacements, decay=DECAY):
    """The drift, summed term by term."""
    drift = [torch.zeros_like(x) for x in displacements[0]]
    for t, moved in enumerate(displacements, 1):
        kept = min(decay, 1 - 1 / t)
        drift = [kept * d + (1 - kept) * x for d, x in zip(drift, moved, strict=True)]
    return drift


@given(count=st.integers(1, 12), rates=st.lists(st.floats(-9, 50), min_size=4, max_size=4))
def test_momentum_forecasts_coefficient_times_rate_times_drift(count, rates):
    displacements = steps(PREDICTED, count=count)
    history = observed(MomentumPredictor(decay=DECAY, coefficient=LAMBDA), displacements)
    wanted = [LAMBDA * r * d for r, d in zip(rates, averaged(displacements), strict=True)]
    torch.testing.assert_close(history.forecast(rates), wanted, rtol=1e-4, atol=1e-5)


def test_rounding_to_bfloat16_does_not_bias_a_noisy_drift():
    shape, noise = {"matrix": (40, 50)}, 3.0
    (mean,), *displacements = steps(shape, count=151)
    moved = [[mean + noise * x] for (x,) in displacements]
    narrow, exact = (
        observed(MomentumPredictor(), moved, history, shape).forecaster.drift[0]
        for history in ("bfloat16", "float32")
    )
    assert narrow.dtype == torch.bfloat16
    narrow = narrow.float()
    assert float((narrow - exact).norm()) < 0.01 * float(exact.norm())
    assert abs(float((narrow * exact).sum() / exact.square().sum()) - 1) < 1e-3


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_decay_that_bfloat16_cannot_follow_is_refused(name):
    History(PREDICTORS[name](decay=0.96))
    with pytest.raises(ConfigError, match=r"history_dtype: expected 'float32' for .*0\.95, got"):
        History(PREDICTORS[name](decay=0.96), "bfloat16")


def test_a_fitted_forecast_is_the_drift_whose_length_the_run_fits():
    displacements = steps(PREDICTED, count=6)
    history = observed(FittedPredictor(), displacements)
    wanted = [2.0 * drift for drift in averaged(displacements, 0.95)]
    torch.testing.assert_close(history.forecast(2.0), wanted)
    assert history.predictor.fitted and not MomentumPredictor().fitted


OUT_OF_RANGE = [
    *(("fitted", "decay", value) for value in (-0.1, 1.0, NAN)),
    ("fitted", "gated", 1),
    ("momentum", "coefficient", math.inf),
]


@pytest.mark.parametrize(("name", "argument", "value"), OUT_OF_RANGE)
def test_hyperparameters_out_of_range_are_refused(name, argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        PREDICTORS[name](**{argument: value})


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_is_a_value_that_its_name_stands_for(name):
    predictor = make_predictor(name)
    assert predictor == PREDICTORS[name]()
    assert make_predictor(predictor) is predictor
    with pytest.raises(dataclasses.FrozenInstanceError):
        predictor.decay = 0.1
