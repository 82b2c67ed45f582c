"""Placebo forecasts: as long as the real ones, in directions that mean nothing."""

import pytest
import torch
from cases import PREDICTOR_CASES
from contract import PREDICTED, History, check_predictor, same, steps
from loops import Run, net

from benchmarks.placebos import PLACEBOS
from hybrid_predict import FittedPredictor, HybridConfig


@pytest.mark.parametrize("placebo", PLACEBOS)
def test_a_placebo_has_history_and_length_of_the_inner_predictor(placebo):
    predictor = PREDICTOR_CASES["momentum"]
    check_predictor(PLACEBOS[placebo](inner=predictor))
    wrong = History(PLACEBOS[placebo](inner=predictor, decay=predictor.decay))
    right = History(predictor)
    for displacement in steps(PREDICTED, count=20):
        wrong.observe(displacement)
        right.observe(displacement)
    assert same(wrong.forecaster.drift, right.forecaster.drift)
    forecast, real = wrong.forecast(2.0), right.forecast(2.0)
    lengths, wanted = ([float(x.norm()) for x in each] for each in (forecast, real))
    assert min(wanted) > 0
    assert lengths == pytest.approx(wanted, rel=1e-5)
    assert not same(forecast, real)
    if placebo == "negated":
        assert same(forecast, [-x for x in real])


def trained(predictor):
    """Train a small net on noisy targets; return the ledger."""

    def loss(model, k):
        inputs, noise = torch.randn(32, 16), 0.3 * torch.randn(32, 1)
        return (model(inputs) - inputs.sum(1, keepdim=True).sin() - noise).square().mean()

    model = net(16, 48, 48, 48, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = HybridConfig(total_steps=120, max_overhead=1e9, predictors={"hidden": predictor})
    return Run(model, optimizer, config, loss).finish().engine.ledger


def test_a_predictor_has_skill():
    assert trained(FittedPredictor(gated=False)).skills["hidden"]["lower"] > 0


@pytest.mark.parametrize("placebo", PLACEBOS)
def test_a_placebo_gains_no_skill_and_makes_no_predicted_step(placebo):
    ledger = trained(PLACEBOS[placebo](inner=FittedPredictor()))
    assert ledger.skills["hidden"]["lower"] <= 0
    assert ledger.predicted_steps == ledger.undone_steps == 0
