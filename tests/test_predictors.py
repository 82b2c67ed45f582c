"""The contract that every registered predictor keeps, on every backend."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import BACKEND_CASES, DECAY, HISTORY_CASES, PREDICTOR_CASES
from hybrid_predict import (
    CheckpointError,
    ConfigError,
    LinearPredictor,
    MomentumPredictor,
    SpectralPredictor,
    WeightDelta,
)
from hybrid_predict.predictors import PREDICTORS, make_predictor
from hybrid_predict.testing.backends import NUMPY, NUMPY_NARROW, TORCH_NARROW
from hybrid_predict.testing.predictors import PREDICTOR_CHECKS, History, steps

NO_FACTORS = (0.5, float("inf"), float("nan"))
everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)
every_predictor = pytest.mark.parametrize("name", PREDICTOR_CASES)
either_loop = pytest.mark.parametrize("closed_loop", [True, False], ids=["closed", "open"])


def test_table_covers_every_predictor():
    classes = {name: type(case.predictor) for name, case in PREDICTOR_CASES.items()}
    assert classes == PREDICTORS


@pytest.mark.parametrize("backend", HISTORY_CASES)
@every_predictor
@pytest.mark.parametrize("check", PREDICTOR_CHECKS)
def test_predictor_keeps_its_contract(name, backend, check):
    PREDICTOR_CHECKS[check](PREDICTOR_CASES[name].predictor, HISTORY_CASES[backend])


@every_predictor
def test_history_in_bfloat16_is_the_reference_rounded_at_every_step(name):
    predictor = PREDICTOR_CASES[name].predictor
    found, wanted, exact = (
        History(predictor, case) for case in (TORCH_NARROW, NUMPY_NARROW, NUMPY)
    )
    for arrays in steps(count=12):
        for history in (found, wanted, exact):
            history.observe(arrays)
    assert {x.dtype for x in (*found.state.average, *found.state.direction)} == {torch.bfloat16}
    for got, twin, plain in zip(*(h.forecast(1.0) for h in (found, wanted, exact)), strict=True):
        size = np.abs(plain).max()
        np.testing.assert_allclose(got, twin, atol=2.0**-7 * size)
        assert 0 < np.abs(got - plain).max() < 0.05 * size


@pytest.mark.parametrize("decay", [0.8, 0.95])
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_rounding_to_bfloat16_does_not_bias_averages_of_noisy_gradients(decay, noise):
    predictor, shape = MomentumPredictor(decay=decay), {"matrix": (40, 50)}
    narrow, exact = (History(predictor, case, shape) for case in (NUMPY_NARROW, NUMPY))
    generator = np.random.default_rng(1)
    mean = generator.normal(size=(40, 50))
    for _ in range(150):
        gradient = mean + noise * generator.normal(size=mean.shape)
        narrow.observe([gradient])
        exact.observe([gradient])
    (found,), (wanted,) = narrow.state.average, exact.state.average
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)
    assert abs(np.vdot(found, wanted) / np.vdot(wanted, wanted) - 1) < 1e-3


@pytest.mark.parametrize("decay", [0.5, 0.95])
def test_averages_of_one_gradient_in_bfloat16_stop_where_documented(decay):
    history = History(MomentumPredictor(decay=decay), NUMPY_NARROW, {"vector": (999,)})
    gradient = np.linspace(1, 4, 999)
    for _ in range(500):
        history.observe([gradient])
    missing = 1 - history.state.average[0] / gradient
    assert np.all(missing < 1.01 * 2.0**-8 / (1 - decay))
    assert missing.max() > 2.0**-10 / (1 - decay)


@everywhere
@every_predictor
def test_a_decay_that_bfloat16_cannot_follow_is_refused(name, backend):
    narrow = dataclasses.replace(
        BACKEND_CASES[backend], backend=type(BACKEND_CASES[backend].backend)("bfloat16")
    )
    predictor = PREDICTORS[name](decay=0.96)
    History(predictor, BACKEND_CASES[backend])
    with pytest.raises(ConfigError, match=r"history_dtype: expected 'float32' with .*0\.95, got"):
        History(predictor, narrow)


@everywhere
@every_predictor
@either_loop
@pytest.mark.parametrize("horizon", [0.0, 0.5, 1.0, 8.0])
def test_length_follows_the_horizon_as_documented(name, backend, closed_loop, horizon):
    case = PREDICTOR_CASES[name]
    history = History(case.predictor, BACKEND_CASES[backend])
    (velocity,) = steps(count=1)
    for _ in range(3):
        history.observe(velocity)
    wanted = case.length(horizon, closed_loop, 1 - DECAY**3)
    for found, v in zip(history.forecast(horizon, closed_loop), velocity, strict=True):
        assert np.linalg.norm(found) == pytest.approx(wanted * np.linalg.norm(v), rel=1e-5)


@everywhere
def test_history_of_another_predictor_is_refused(backend):
    linear, spectral = (
        History(PREDICTORS[name](), BACKEND_CASES[backend]) for name in ("linear", "spectral")
    )
    with pytest.raises(CheckpointError, match="another predictor"):
        linear.state.load_state_dict(spectral.state.state_dict(), linear.case.backend)


@everywhere
@given(count=st.integers(1, 12), horizon=st.floats(0, 50))
def test_linear_predictor_is_exact_at_constant_velocity(backend, count, horizon):
    history = History(LinearPredictor(decay=DECAY), BACKEND_CASES[backend])
    (velocity,) = steps(count=1)
    for _ in range(count):
        history.observe(velocity)
    for found, v in zip(history.forecast(horizon), velocity, strict=True):
        np.testing.assert_allclose(found, horizon * v, rtol=1e-9, atol=1e-12)


@everywhere
def test_linear_predictor_does_not_feed_on_its_own_forecasts(backend):
    history = History(LinearPredictor(decay=DECAY), BACKEND_CASES[backend])
    (velocity,) = steps(count=1)
    history.observe(velocity)
    for _ in range(6):
        delta, forecast = history.delta(5.0), history.forecast(5.0)
        copies = tuple(history.load(history.case.dump(d)) for d in delta.directions)
        moved = [u + f for u, f in zip(velocity, forecast, strict=True)]
        history.observe(moved, WeightDelta(delta.names, copies, delta.factors))
    for found, v in zip(history.forecast(1.0), velocity, strict=True):
        np.testing.assert_allclose(found, v, rtol=1e-9)


@everywhere
@pytest.mark.parametrize("horizon", [0.5, 1.0, 4.0])
def test_momentum_in_closed_loop_settles_at_a_displacement_of_1_plus_h_updates(backend, horizon):
    history = History(MomentumPredictor(decay=DECAY), BACKEND_CASES[backend])
    (update,) = steps(count=1)
    for _ in range(400):
        moved = [u + f for u, f in zip(update, history.forecast(horizon), strict=True)]
        history.observe(moved)
    for displacement, u in zip(moved, update, strict=True):
        np.testing.assert_allclose(displacement, (1 + horizon) * u, rtol=1e-6)


@everywhere
def test_momentum_follows_geometric_decay_in_closed_form(backend):
    history, rate, count = History(MomentumPredictor(decay=DECAY), BACKEND_CASES[backend]), 0.5, 6
    (first,) = steps(count=1)
    for k in range(count):
        history.observe([rate**k * x for x in first])
    weight = (1 - DECAY) * (DECAY**count - rate**count) / (DECAY - rate)
    for found, x in zip(history.forecast(1.0, closed_loop=False), first, strict=True):
        np.testing.assert_allclose(found, weight * x, rtol=1e-9)


@everywhere
def test_spectral_direction_is_refreshed_at_its_period_only(backend):
    history = History(SpectralPredictor(decay=DECAY, refresh_every=3), BACKEND_CASES[backend])
    directions = []
    for arrays in steps(count=7):
        history.observe(arrays)
        directions.append([x / np.linalg.norm(x) for x in history.forecast(1.0)])
    renewed = [
        not all(np.allclose(x, y) for x, y in zip(*pair, strict=True))
        for pair in pairwise(directions)
    ]
    assert renewed == [False, False, True, False, False, True]


@everywhere
@pytest.mark.parametrize("damped", [False, True])
@pytest.mark.parametrize("level_rows", [False, True])
def test_spectral_forecast_is_muon_s_step_at_the_length_of_the_update(backend, level_rows, damped):
    case, shapes = BACKEND_CASES[backend], {"matrix": (4, 3)}
    predictor = SpectralPredictor(
        decay=DECAY, newest=0.3, damped=damped, level_rows=level_rows, stretch=1.0, magnify=1.0
    )
    history, average, moments = History(predictor, case, shapes), np.zeros((4, 3)), np.zeros(4)
    gradients, updates = steps(count=5, shapes=shapes), steps(seed=1, count=5, shapes=shapes)
    for (gradient,), (update,) in zip(gradients, updates, strict=True):
        lengths = case.backend.norms([history.load(update)])
        seen = [history.load(gradient)]
        history.predictor.observe(history.state, seen, None, case.backend, lengths)
        share = 0.3
        if damped and average.any():
            norms = np.linalg.norm(gradient) * np.linalg.norm(average)
            share = 0.3 * (1 + np.vdot(gradient, average) / norms)
        average = DECAY * average + (1 - DECAY) * gradient
        blend = (1 - share) * average + share * gradient
        left, _, right = np.linalg.svd(blend, full_matrices=False)
        wanted = left @ right
        if level_rows:
            moments = 0.95 * moments + 0.05 * np.square(wanted).mean(1)
            wanted = wanted / np.sqrt(moments)[:, None]
        (found,) = history.forecast(2.0)
        assert np.linalg.norm(found) == pytest.approx(2 * np.linalg.norm(update), rel=1e-5)
        # Newton-Schulz leaves singular values between about 0.7 and 1.2 of each other.
        assert -np.vdot(found, wanted) > 0.95 * np.linalg.norm(found) * np.linalg.norm(wanted)


@everywhere
@pytest.mark.parametrize("stretch", [1.0, 1.5, 100.0])
def test_tall_matrices_are_forecast_further_up_to_the_stretch(backend, stretch):
    shapes = {"tall": (9, 1), "kernel": (8, 1, 2, 2), "wide": (2, 6), "vector": (5,), "scalar": ()}
    predictor = SpectralPredictor(stretch=stretch, magnify=1.0)
    history = History(predictor, BACKEND_CASES[backend], shapes)
    (update,) = steps(count=1, shapes=shapes)
    history.observe(update)
    lengths = [np.linalg.norm(f) for f in history.forecast(2.0)]
    ratios = [length / np.linalg.norm(u) for length, u in zip(lengths, update, strict=True)]
    wanted = [2 * min(stretch, ratio) for ratio in (3.0, 2**0.5, 1.0, 1.0, 1.0)]
    np.testing.assert_allclose(ratios, wanted, rtol=1e-5)


@everywhere
@pytest.mark.parametrize("muon_rate", [1e-3, 1.0, 10.0])
def test_forecasts_are_as_long_as_those_of_a_muon_of_the_rate_asked_for(backend, muon_rate):
    shapes = {"tall": (9, 4), "kernel": (2, 2, 2, 1), "vector": (5,)}
    capacity = 4 + 2 + 1
    predictor = SpectralPredictor(decay=DECAY, stretch=1.0, muon_rate=muon_rate, magnify=8.0)
    history, longest = History(predictor, BACKEND_CASES[backend], shapes), 0.0
    for size, updates in zip((0.1, 0.05, 0.3, 0.01), steps(shapes=shapes), strict=True):
        updates = [size * u for u in updates]
        history.observe(updates)
        longest = max(longest, sum(np.vdot(u, u) for u in updates))
        factor = min(8.0, max(1.0, muon_rate / np.sqrt(longest / capacity)))
        for found, update in zip(history.forecast(1.0), updates, strict=True):
            assert np.linalg.norm(found) == pytest.approx(factor * np.linalg.norm(update), rel=1e-5)


@everywhere
def test_what_persists_is_forecast_further_where_gradients_turn_back(backend):
    persists, turns = np.eye(4, 3), np.outer([0, 0, 0, 1.0], [0, 0, 1.0])
    lengths = []
    for damped in (False, True):
        predictor = SpectralPredictor(damped=damped, level_rows=False)
        history = History(predictor, BACKEND_CASES[backend], {"matrix": (4, 3)})
        for k in range(60):
            history.observe([1e-4 * persists + (-1) ** k * turns])
        (found,) = history.forecast(1.0)
        lengths.append(np.vdot(found, persists) / np.linalg.norm(found))
    assert lengths[1] > 2 * lengths[0] > 0


@pytest.mark.parametrize(
    ("cls", "argument", "value"),
    [(cls, "decay", d) for cls in PREDICTORS.values() for d in (-0.1, 1.0, float("nan"))]
    + [(SpectralPredictor, "refresh_every", 0), (SpectralPredictor, "iterations", 0)]
    + [(SpectralPredictor, "newest", x) for x in (-0.1, 0.6, 1.1, float("nan"))]
    + [(SpectralPredictor, x, y) for x in ("stretch", "magnify") for y in NO_FACTORS]
    + [(SpectralPredictor, "muon_rate", x) for x in (0.0, float("inf"), float("nan"))]
    + [(SpectralPredictor, x, 1) for x in ("level_rows", "damped")],
)
def test_hyperparameters_out_of_range_are_refused(cls, argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        cls(**{argument: value})


def test_a_constant_share_of_the_newest_gradient_may_be_all_of_it():
    assert SpectralPredictor(newest=1.0, damped=False).newest == 1.0
    with pytest.raises(ConfigError, match=r"^newest: expected a number in \[0, 1\], got 1.1"):
        SpectralPredictor(newest=1.1, damped=False)


@every_predictor
def test_predictor_is_an_immutable_value_that_its_name_stands_for(name):
    assert make_predictor(name) == PREDICTORS[name]()
    predictor = PREDICTOR_CASES[name].predictor
    assert make_predictor(predictor) is predictor
    with pytest.raises(dataclasses.FrozenInstanceError):
        predictor.decay = 0.1


@pytest.mark.parametrize("choice", ["quadratic", None, 3])
def test_unknown_predictor_is_refused_with_the_known_names(choice):
    with pytest.raises(ConfigError, match="predictors: expected one of linear, momentum, spectral"):
        make_predictor(choice)
