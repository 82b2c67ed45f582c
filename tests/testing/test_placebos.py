"""Placebo forecasts: as long as the real ones, in directions that mean nothing."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from cases import PREDICTOR_CASES

from hybrid_predict import ConfigError, ContractError, FittedPredictor, MomentumPredictor
from hybrid_predict.forecast.predictors import AbstractPredictor, PredictorState
from hybrid_predict.testing import check_placebos, check_predictor
from hybrid_predict.testing.contract import same, steps
from hybrid_predict.testing.placebos import (
    PLACEBOS,
    RandomForecast,
    ShuffledForecast,
    StaleForecast,
)
from hybrid_predict.testing.predictors import SHAPES, History
from hybrid_predict.torch.deltas import WeightDelta

WIDE = {"matrix": (60, 40), "kernel": (20, 10, 3, 3)}


def cosine(left, right):
    return float(torch.cosine_similarity(left.flatten(), right.flatten(), dim=0))


@pytest.mark.parametrize("placebo", PLACEBOS)
@pytest.mark.parametrize("inner", PREDICTOR_CASES)
def test_a_placebo_has_history_and_length_of_the_inner_predictor(placebo, inner):
    predictor = PREDICTOR_CASES[inner]
    check_predictor(PLACEBOS[placebo](inner=predictor))
    wrong, right = History(PLACEBOS[placebo](inner=predictor)), History(predictor)
    for displacement in steps(SHAPES, count=20):
        wrong.observe(displacement)
        right.observe(displacement)
    for name, arrays in right.state.arrays.items():
        assert same(wrong.state.arrays[name], arrays)
    forecast, real = wrong.forecast(2.0), right.forecast(2.0)
    lengths, wanted = ([float(x.norm()) for x in each] for each in (forecast, real))
    assert min(wanted) > 0
    assert lengths == pytest.approx(wanted, rel=1e-5)
    assert not same(forecast, real)
    if placebo == "negated":
        assert same(forecast, [-x for x in real])


def random_forecasts(count, **options):
    """The forecasts of a random placebo after each of ``count`` equal displacements."""
    history = History(RandomForecast(**options), shapes=WIDE)
    (displacement,) = steps(WIDE, count=1)
    forecasts = []
    for _ in range(count):
        history.observe(displacement)
        forecasts.append(history.forecast())
    return displacement, forecasts


def test_random_forecasts_are_as_likely_right_as_wrong():
    count = 100
    displacement, forecasts = random_forecasts(count, hold=1)
    for k, x in enumerate(displacement):
        cosines = torch.tensor([cosine(forecast[k], x) for forecast in forecasts])
        spread = x.numel() ** -0.5
        assert abs(cosines.mean()) < 4 * spread / count**0.5
        assert 0.7 * spread < cosines.std() < 1.3 * spread


@pytest.mark.parametrize("hold", [1, 4])
def test_random_direction_is_held_for_so_many_displacements(hold):
    _, forecasts = random_forecasts(12, hold=hold)
    for k, (left, right) in enumerate(pairwise(forecasts), 2):  # displacement k is between them
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


@dataclass(frozen=True)
class Constant(AbstractPredictor):
    """Forecasts the same movement in every step."""

    def init(self, names, like, history):
        return PredictorState(tuple(names), {"same": [torch.ones_like(x) for x in like]})

    def observe(self, state, displacement):
        state.count += 1

    def forecast(self, state, rates):
        return WeightDelta(state.names, tuple(state.arrays["same"]), tuple(1.0 * r for r in rates))


NOTHING_KNOWN = {
    "shuffled": ShuffledForecast(),
    "stale": StaleForecast(),
    "constant": Constant(),
}


@pytest.mark.parametrize("predictor", NOTHING_KNOWN.values(), ids=NOTHING_KNOWN.keys())
def test_a_predictor_that_cannot_be_told_from_its_placebos_fails(predictor):
    with pytest.raises(ContractError, match="skill of its own, which placebos do not have"):
        check_placebos(predictor, steps=200)


def test_a_real_predictor_passes():
    check_placebos(FittedPredictor(), steps=100)


def test_a_gate_that_lets_every_placebo_through_is_found(monkeypatch):
    monkeypatch.setattr("hybrid_predict.groups.gate.enough", lambda skill: True)
    with pytest.raises(ContractError, match="placebo"):
        check_placebos(MomentumPredictor(), steps=120)
