"""Placebo forecasts: as long as the real ones, in directions that mean nothing."""

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from cases import PREDICTOR_CASES
from contract import PREDICTED, History, check_predictor, same, steps
from loops import full_step, net

from benchmarks.placebos import PLACEBOS, RandomForecast
from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine

WIDE = {"matrix": (60, 40), "kernel": (20, 10, 3, 3)}


def cosine(left, right):
    return float(torch.cosine_similarity(left.flatten(), right.flatten(), dim=0))


@pytest.mark.parametrize("placebo", PLACEBOS)
def test_a_placebo_has_history_and_length_of_the_inner_predictor(placebo):
    predictor = PREDICTOR_CASES["momentum"]
    check_predictor(PLACEBOS[placebo](inner=predictor))
    wrong, right = History(PLACEBOS[placebo](inner=predictor)), History(predictor)
    for displacement in steps(PREDICTED, count=20):
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


def test_random_direction_is_held_for_so_many_displacements():
    hold = 4
    _, forecasts = random_forecasts(12, hold=hold)
    for k, (left, right) in enumerate(pairwise(forecasts), 2):  # displacement k is between them
        for x, y in zip(left, right, strict=True):
            assert abs(cosine(x, y)) < 0.15 if k % hold == 0 else cosine(x, y) > 0.999


def test_random_directions_follow_from_the_seed_alone():
    first, again, other = (random_forecasts(5, seed=seed)[1] for seed in (1, 1, 2))
    for left, repeated, different in zip(first, again, other, strict=True):
        assert same(left, repeated)
        assert abs(cosine(left[0], different[0])) < 0.15


class Outcome(NamedTuple):
    """Predicted steps of a run, and the last and highest lower bound of skill."""

    made: int
    lower: float
    highest: float


def trained(predictor, steps):
    """Train a small net on noisy targets."""
    model = net(16, 48, 48, 48, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = HybridConfig(total_steps=steps, max_overhead=1e9, predictors={"hidden": predictor})
    engine = HybridEngine(model, optimizer, config)
    bounds = [-1.0]

    def loss():
        inputs = torch.randn(32, 16)
        noise = 0.3 * torch.randn(32, 1)
        return (model(inputs) - inputs.sum(1, keepdim=True).sin() - noise).square().mean()

    while not engine.done:
        full_step(engine, [optimizer], loss)
        if "hidden" in engine.ledger.skills:
            bounds.append(engine.ledger.skills["hidden"]["lower"])
    ledger = engine.ledger
    return Outcome(ledger.predicted_steps, bounds[-1], max(bounds))


def test_a_predictor_has_skill():
    assert trained(FittedPredictor(gated=False), 120).lower > 0


@pytest.mark.parametrize("placebo", PLACEBOS)
def test_a_placebo_gains_no_skill_and_makes_no_predicted_step(placebo):
    found = trained(PLACEBOS[placebo](inner=FittedPredictor()), 120)
    assert found.highest <= 0
    assert found.made == 0
