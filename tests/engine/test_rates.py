"""Every parameter moves by its own group's learning rate, and not at all where that is 0."""

import pytest
import torch
from cases import UNGATED
from loops import Run, net, normal

from hybrid_predict import HybridConfig, SpectralUpdate

SLOW, FAST = 1e-6, 1e-3
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


WIDTHS = 6, 16, 16, 16, 1


def loss(model, k):
    x = normal(k, 32, 6)
    return (model(x) - x.prod(1, keepdim=True).tanh()).square().mean()


def plugged(model, optimizer, steps, **changes):
    settings = {"total_steps": 3 * steps // 2, "predictors": UNGATED, **changes}
    return Run(model, optimizer, HybridConfig(**settings), loss)


def two_rates(model, make):
    """A backbone that is fine-tuned beside a new head."""
    backbone, head = list(model[0].parameters()), list(model[2:].parameters())
    return make([{"params": backbone, "lr": SLOW}, {"params": head, "lr": FAST}], lr=FAST)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_backbone_at_a_small_rate_moves_further_by_no_more_than_the_bound(name):
    paths = []
    for plain in (True, False):
        model = net(*WIDTHS)
        optimizer = two_rates(model, OPTIMIZERS[name])
        run = Run(model, optimizer, None, loss) if plain else plugged(model, optimizer, 40)
        run.train(40)
        paths.append(sum(float(m["0.weight"].norm()) for m in (*run.inside, *run.between)))
    assert paths[1] < SpectralUpdate().bound * paths[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_nothing_moves_while_the_rate_is_zero_and_the_drift_survives(name, as_tensor):
    model = net(*WIDTHS)
    run = plugged(model, OPTIMIZERS[name](model.parameters(), lr=FAST), 40)
    for k in range(40):
        rate = 0.0 if 15 <= k < 25 else FAST
        run.optimizer.param_groups[0]["lr"] = (
            torch.tensor(rate) if as_tensor and name != "sgd" else rate
        )
        run.step()
        assert run.moved_inside == (set() if rate == 0.0 else set(run.inside[0]))
        assert rate or not run.moved_between
    late = [max(float(m.norm()) for m in step.values()) for step in run.between[25:]]
    assert 0 < max(late) < max(float(m.norm()) for step in run.inside for m in step.values())
    assert all(p.isfinite().all() for p in model.parameters())
