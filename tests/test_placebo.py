"""Placebo forecasts: as long as the real ones, in directions that mean nothing."""

from itertools import pairwise

import numpy as np
import pytest

import test_predictors as contract
from cases import PREDICTOR_CASES, PredictorCase
from hybrid_predict import ConfigError, SpectralPredictor
from hybrid_predict.bench.peers.placebo import NegatedForecast, RandomForecast
from hybrid_predict.testing import check_predictor
from hybrid_predict.testing.predictors import History, same, steps
from loops import Bench, make_config

PLACEBOS = {"random": RandomForecast, "negated": NegatedForecast}
every_placebo = pytest.mark.parametrize("placebo", PLACEBOS.values(), ids=PLACEBOS.keys())
every_inner = pytest.mark.parametrize("inner", PREDICTOR_CASES)
WIDE = {"matrix": (60, 40), "kernel": (20, 10, 3, 3)}


def cosine(left, right):
    left, right = np.ravel(left), np.ravel(right)
    return left @ right / (np.linalg.norm(left) * np.linalg.norm(right))


@pytest.fixture(params=[(p, i) for p in PLACEBOS for i in PREDICTOR_CASES], ids="-".join)
def name(request, monkeypatch):
    """The name under which the contract's tests find a placebo."""
    placebo, inner = request.param
    case = PREDICTOR_CASES[inner]
    own = PredictorCase(PLACEBOS[placebo](case.predictor), case.length)
    monkeypatch.setitem(PREDICTOR_CASES, "placebo", own)
    return "placebo"


@pytest.mark.parametrize("closed_loop", [True, False], ids=["closed", "open"])
def test_length_follows_the_horizon_as_the_inner_predictor_s_does(name, closed_loop):
    for horizon in (0.0, 0.5, 8.0):
        contract.test_length_follows_the_horizon_as_documented(name, "torch", closed_loop, horizon)


def test_placebos_keep_the_contract_of_predictors(name):
    check_predictor(PREDICTOR_CASES[name].predictor)


@every_placebo
@every_inner
def test_history_and_length_are_those_of_the_inner_predictor(placebo, inner):
    predictor = PREDICTOR_CASES[inner].predictor
    wrong, right = (History(p) for p in (placebo(predictor), predictor))
    for arrays in steps(count=20):
        wrong.observe(arrays)
        right.observe(arrays)
    assert same(wrong.state.average, right.state.average)
    pairs = zip(wrong.forecast(2.0), right.forecast(2.0), strict=True)
    lengths = [(np.linalg.norm(left), np.linalg.norm(own)) for left, own in pairs]
    assert all(left == pytest.approx(own, rel=1e-5) for left, own in lengths)
    assert all(own > 0 for _, own in lengths)


@every_inner
def test_negated_forecast_is_the_opposite(inner):
    predictor = PREDICTOR_CASES[inner].predictor
    negated, plain = (History(p) for p in (NegatedForecast(predictor), predictor))
    for arrays in steps():
        negated.observe(arrays)
        plain.observe(arrays)
    assert same(negated.forecast(2.0), [-x for x in plain.forecast(2.0)])


def random_forecasts(count, **options):
    """The forecasts of a random placebo after each of ``count`` equal displacements."""
    history = History(RandomForecast(**options), shapes=WIDE)
    (displacement,) = steps(count=1, shapes=WIDE)
    found = []
    for _ in range(count):
        history.observe([x.copy() for x in displacement])
        found.append(history.forecast(1.0))
    return displacement, found


def test_random_forecasts_are_as_likely_right_as_wrong():
    count = 100
    displacement, found = random_forecasts(count, hold=1)
    for k, x in enumerate(displacement):
        cosines = np.array([cosine(forecast[k], x) for forecast in found])
        spread = 1 / np.sqrt(x.size)
        assert abs(cosines.mean()) < 4 * spread / np.sqrt(count)
        assert 0.7 * spread < cosines.std() < 1.3 * spread
        entries = found[0][k] / found[0][k].std()
        assert np.mean(entries**4) == pytest.approx(3.0, abs=0.6)


@pytest.mark.parametrize("hold", [1, 4])
def test_random_direction_is_held_for_so_many_observations(hold):
    _, found = random_forecasts(12, hold=hold)
    for k, (left, right) in enumerate(pairwise(found), 2):  # the k-th observation is between them
        for x, y in zip(left, right, strict=True):
            assert abs(cosine(x, y)) < 0.15 if k % hold == 0 else cosine(x, y) > 0.999


def test_random_directions_follow_from_the_seed_alone():
    first, again, other = (random_forecasts(5, seed=seed)[1] for seed in (1, 1, 2))
    for left, repeated, different in zip(first, again, other, strict=True):
        assert same(left, repeated)
        assert abs(cosine(left[0], different[0])) < 0.15


@pytest.mark.parametrize(("argument", "least"), [("seed", 0), ("hold", 1)])
def test_bad_arguments_are_refused(argument, least):
    with pytest.raises(ConfigError, match=rf"^{argument}: expected an integer, at least {least}"):
        RandomForecast(**{argument: least - 1})


@every_placebo
def test_engine_forecasts_with_a_placebo(placebo):
    predictors = {"hidden": placebo(SpectralPredictor(refresh_every=1))}
    bench = Bench(make_config(predictors=predictors))
    records = bench.train(10)
    found = [r.alignment for r in records if r.horizon > 0 and r.alignment is not None]
    assert len(found) >= 5
    assert bench.engine.config.to_dict()["predictors"]["hidden"]["class"] == placebo.__name__
