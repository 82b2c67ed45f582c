"""``speedup="auto"``: a run decides how many predicted steps it takes, and stays a whole run."""

import pytest
import torch
from cases import EVERY_KIND
from loops import Run, net

from hybrid_predict import HybridConfig
from hybrid_predict.config import MOST_PREDICTED
from hybrid_predict.ledger import Phase

SMALL, GOOD = 1e-5, 1e-2
"""Learning rates."""

STEPS = 240
AT_ONCE = MOST_PREDICTED
"""Largest number of predicted steps before a full step."""


def auto(**changes):
    wanted = {"speedup": "auto", "total_steps": STEPS, "max_overhead": 1e9}
    return HybridConfig(**{**wanted, **changes})


def small(width=24):
    return net(8, width, width, 1)


def regression(model, k):
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(32, 8, generator=generator)
    noise = 0.3 * torch.randn(32, 1, generator=generator)
    return (model(x) - x.sum(1, keepdim=True).sin() - noise).square().mean()


def noise(model, k):
    """A loss whose gradients are random and independent of the weights and of each other."""
    generator = torch.Generator().manual_seed(k)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return sum((p * torch.randn(p.shape, generator=generator)).sum() for p in parameters)


def run(rate=SMALL, loss=regression, model=None, **changes):
    model = model or small()
    trained = [p for p in model.parameters() if p.requires_grad]
    return Run(model, torch.optim.AdamW(trained, lr=rate), auto(**changes), loss)


@pytest.mark.parametrize(("speedup", "factor"), [("auto", 1000.0), ("auto", 3.0), (1.5, 1000.0)])
def test_advances_begin_anew_where_the_learning_rate_rises_far(speedup, factor):
    one = run(speedup=speedup)
    while not one.records or not one.records[-1].predicted or len(one.records) < 100:
        one.step()
    assert max(known.advance for known in one.engine._policy.confidences.values()) > 1
    for group in one.optimizer.param_groups:
        group["lr"] *= factor
    drifts, anew = [], factor > 4
    while len(drifts) < 4:
        record = one.step()
        drifts += [record.length] if record.predicted else [0.0] * (speedup == "auto")
    largest = max(length * factor for length in drifts)
    assert (largest < 0.1 if speedup == "auto" else largest < 1.5 * factor) == anew


def check_whole(one):
    """The run has as many steps as it should, and predicted steps only where they may be."""
    engine, records, taken = one.engine, one.records, 0
    planned, ledger = engine.schedule, engine.ledger
    for record in records:
        if record.predicted:
            assert record.phase is Phase.PREDICT
            assert 0 < record.predicted <= AT_ONCE
            assert taken >= planned.warmup
            assert taken + record.predicted <= planned.total - planned.cooldown
        taken += record.ticks
    assert taken == ledger.steps == planned.total == ledger.full_steps + ledger.predicted_steps
    made = sum(record.predicted for record in records)
    assert made == ledger.predicted_steps + ledger.undone_steps
    assert all(torch.isfinite(p).all() for p in one.model.parameters())


@pytest.mark.parametrize("changes", [{}, {"speedup": 1.5, "history_dtype": "bfloat16"}], ids=str)
def test_a_rate_that_is_far_too_small_takes_many_predicted_steps(changes):
    one = run(**changes).finish()
    check_whole(one)
    assert one.engine.ledger.predicted_steps > STEPS / 8
    assert one.engine.ledger.undone_steps == 0
    assert all(one.engine.ledger.skills[kind]["advance"] > 0 for kind in ("vector", "head"))


def test_noise_alone_leads_to_no_predicted_step():
    one = run(SMALL, noise, small(64), predictors=EVERY_KIND).finish()
    assert one.engine.ledger.predicted_steps == 0
    assert one.engine.ledger.full_steps == STEPS
