"""The contract that every registered predictor keeps, on every backend."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import BACKEND_CASES, DECAY, PREDICTOR_CASES
from hybrid_predict import (
    CheckpointError,
    ConfigError,
    LinearPredictor,
    MomentumPredictor,
    SpectralPredictor,
    WeightDelta,
)
from hybrid_predict.predictors import PREDICTORS, make_predictor

SHAPES = {"matrix": (4, 3), "vector": (5,), "kernel": (3, 2, 2, 2), "scalar": ()}
NAMES = tuple(SHAPES)


class History:
    """A predictor with its state, fed with NumPy arrays and read as NumPy arrays."""

    def __init__(self, predictor, backend, shapes=SHAPES):
        self.predictor, self.case = predictor, BACKEND_CASES[backend]
        like = [self.load(np.zeros(shape)) for shape in shapes.values()]
        self.state = predictor.init(tuple(shapes), like, self.case.backend)

    def load(self, array):
        return self.case.load(np.asarray(array), "float64")

    def observe(self, arrays, applied=None):
        displacement = [self.load(x) for x in arrays]
        downhill = [self.load(-np.asarray(x)) for x in arrays]
        gradient = downhill if self.predictor.replaces_update else None
        self.predictor.observe(self.state, displacement, applied, self.case.backend, gradient)

    def delta(self, horizon, closed_loop=True):
        horizons = [horizon] * len(self.state.names)
        return self.predictor.forecast(self.state, horizons, closed_loop=closed_loop)

    def forecast(self, horizon, closed_loop=True):
        delta = self.delta(horizon, closed_loop)
        pairs = zip(delta.directions, delta.factors, strict=True)
        return [factor * self.case.dump(direction) for direction, factor in pairs]


def steps(seed=0, count=4, shapes=SHAPES):
    generator = np.random.default_rng(seed)
    return [[generator.normal(size=s) for s in shapes.values()] for _ in range(count)]


def same(left, right):
    return all(np.array_equal(x, y) for x, y in zip(left, right, strict=True))


everywhere = pytest.mark.parametrize("backend", BACKEND_CASES)
every_predictor = pytest.mark.parametrize("name", PREDICTOR_CASES)
either_loop = pytest.mark.parametrize("closed_loop", [True, False], ids=["closed", "open"])


def test_table_covers_every_predictor():
    classes = {name: type(case.predictor) for name, case in PREDICTOR_CASES.items()}
    assert classes == PREDICTORS


@everywhere
@every_predictor
@either_loop
def test_forecast_is_zero_before_any_observation(name, backend, closed_loop):
    history = History(PREDICTOR_CASES[name].predictor, backend)
    assert not any(np.any(x) for x in history.forecast(3.0, closed_loop))


@everywhere
@every_predictor
@either_loop
def test_forecast_is_pure_and_repeatable(name, backend, closed_loop):
    history = History(PREDICTOR_CASES[name].predictor, backend)
    for arrays in steps():
        history.observe(arrays)
    count, first = history.state.count, history.forecast(2.0, closed_loop)
    history.forecast(7.0, not closed_loop)
    assert same(first, history.forecast(2.0, closed_loop))
    assert any(np.any(x) for x in first)
    assert history.state.count == count


@everywhere
@every_predictor
@either_loop
@pytest.mark.parametrize("horizon", [0.0, 0.5, 1.0, 8.0])
def test_length_follows_the_horizon_as_documented(name, backend, closed_loop, horizon):
    case = PREDICTOR_CASES[name]
    history = History(case.predictor, backend)
    (velocity,) = steps(count=1)
    for _ in range(3):
        history.observe(velocity)
    wanted = case.length(horizon, closed_loop, 1 - DECAY**3)
    for found, v in zip(history.forecast(horizon, closed_loop), velocity, strict=True):
        assert np.linalg.norm(found) == pytest.approx(wanted * np.linalg.norm(v), rel=1e-5)


@everywhere
@every_predictor
def test_forecast_has_a_horizon_per_tensor(name, backend):
    history = History(PREDICTOR_CASES[name].predictor, backend)
    history.observe(steps(count=1)[0])
    delta = history.predictor.forecast(history.state, [0.0, 1.0, 0.0, 2.0])
    assert delta.names == NAMES
    assert [factor > 0 for factor in delta.factors] == [False, True, False, True]


@everywhere
@every_predictor
def test_history_survives_a_round_trip(name, backend):
    predictor = PREDICTOR_CASES[name].predictor
    original, restored = History(predictor, backend), History(predictor, backend)
    for arrays in steps():
        original.observe(arrays)
    restored.state.load_state_dict(original.state.state_dict(), restored.case.backend)
    for arrays in [None, *steps(seed=1)]:
        if arrays is not None:
            original.observe(arrays)
            restored.observe(arrays)
        assert same(original.forecast(2.0), restored.forecast(2.0))


@everywhere
@every_predictor
@pytest.mark.parametrize(
    "shapes",
    [{"another": (4, 3)}, {**SHAPES, "matrix": (3, 4)}, {**SHAPES, "vector": (1,)}],
    ids=["names", "transposed", "broadcastable"],
)
def test_history_of_other_parameters_is_refused_and_changes_nothing(name, backend, shapes):
    predictor = PREDICTOR_CASES[name].predictor
    history, other = History(predictor, backend), History(predictor, backend, shapes)
    for own, foreign in zip(steps(), steps(shapes=shapes), strict=True):
        history.observe(own)
        other.observe(foreign)
    before = history.forecast(2.0)
    with pytest.raises(CheckpointError):
        history.state.load_state_dict(other.state.state_dict(), history.case.backend)
    assert same(before, history.forecast(2.0))


@everywhere
def test_history_of_another_predictor_is_refused(backend):
    linear, spectral = (History(PREDICTORS[name](), backend) for name in ("linear", "spectral"))
    with pytest.raises(CheckpointError, match="another predictor"):
        linear.state.load_state_dict(spectral.state.state_dict(), linear.case.backend)


@everywhere
@given(count=st.integers(1, 12), horizon=st.floats(0, 50))
def test_linear_predictor_is_exact_at_constant_velocity(backend, count, horizon):
    history = History(LinearPredictor(decay=DECAY), backend)
    (velocity,) = steps(count=1)
    for _ in range(count):
        history.observe(velocity)
    for found, v in zip(history.forecast(horizon), velocity, strict=True):
        np.testing.assert_allclose(found, horizon * v, rtol=1e-9, atol=1e-12)


@everywhere
def test_linear_predictor_does_not_feed_on_its_own_forecasts(backend):
    history = History(LinearPredictor(decay=DECAY), backend)
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
    history = History(MomentumPredictor(decay=DECAY), backend)
    (update,) = steps(count=1)
    for _ in range(400):
        moved = [u + f for u, f in zip(update, history.forecast(horizon), strict=True)]
        history.observe(moved)
    for displacement, u in zip(moved, update, strict=True):
        np.testing.assert_allclose(displacement, (1 + horizon) * u, rtol=1e-6)


@everywhere
def test_momentum_follows_geometric_decay_in_closed_form(backend):
    history, rate, count = History(MomentumPredictor(decay=DECAY), backend), 0.5, 6
    (first,) = steps(count=1)
    for k in range(count):
        history.observe([rate**k * x for x in first])
    weight = (1 - DECAY) * (DECAY**count - rate**count) / (DECAY - rate)
    for found, x in zip(history.forecast(1.0, closed_loop=False), first, strict=True):
        np.testing.assert_allclose(found, weight * x, rtol=1e-9)


@everywhere
def test_spectral_direction_is_refreshed_at_its_period_only(backend):
    history = History(SpectralPredictor(decay=DECAY, refresh_every=3), backend)
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
def test_spectral_forecast_is_muon_s_step_at_the_length_of_the_update(backend):
    history = History(SpectralPredictor(decay=DECAY), backend, {"matrix": (4, 3)})
    average = np.zeros((4, 3))
    for (gradient,), (update,) in zip(
        steps(count=5, shapes={"matrix": (4, 3)}),
        steps(seed=1, count=5, shapes={"matrix": (4, 3)}),
        strict=True,
    ):
        history.predictor.observe(
            history.state, [history.load(update)], None, history.case.backend,
            [history.load(gradient)],
        )  # fmt: skip
        average = DECAY * average + (1 - DECAY) * gradient
        left, _, right = np.linalg.svd(
            DECAY * average + (1 - DECAY) * gradient, full_matrices=False
        )
        (found,) = history.forecast(2.0)
        assert np.linalg.norm(found) == pytest.approx(2 * np.linalg.norm(update), rel=1e-5)
        # Newton-Schulz leaves singular values between about 0.7 and 1.2 of each other.
        cosine = -np.vdot(found, left @ right) / np.linalg.norm(found) / np.sqrt(3)
        assert cosine > 0.95


@pytest.mark.parametrize(
    ("cls", "argument", "value"),
    [(cls, "decay", d) for cls in PREDICTORS.values() for d in (-0.1, 1.0, float("nan"))]
    + [(SpectralPredictor, "refresh_every", 0), (SpectralPredictor, "iterations", 0)],
)
def test_hyperparameters_out_of_range_are_refused(cls, argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        cls(**{argument: value})


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
