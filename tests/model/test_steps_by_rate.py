"""The wrapper steps all of its optimizers, by their own rates or by that of the call."""

import pytest
import torch
from torch import nn

from hybrid_predict import OptimizerWrapper

RATES = [0.1, 0.2, 0.3]


def several(rates):
    """Two optimizers, the first with two groups."""
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=True)]
    for p in parameters:
        p.grad = torch.ones(1)
    return parameters, [torch.optim.SGD(groups[:2]), torch.optim.SGD(groups[2:])]


@pytest.mark.parametrize(("rate", "tensors"), [(None, False), (0.5, True), (0, False)])
def test_every_optimizer_steps_by_the_rate_of_the_call(rate, tensors):
    own = [torch.tensor(r) for r in RATES] if tensors else RATES
    parameters, optimizers = several(own)
    OptimizerWrapper(optimizers).step(rate=rate)
    used = RATES if rate is None else [rate] * 3
    assert [p.item() for p in parameters] == pytest.approx([1.0 - r for r in used])
    after = [group["lr"] for o in optimizers for group in o.param_groups]
    assert all(x is y for x, y in zip(after, own, strict=True))
    assert [float(x) for x in after] == pytest.approx(RATES)


def test_the_rates_come_back_after_an_error_and_the_closure_is_called_once():
    parameters, optimizers = several(RATES)
    wrapper, calls = OptimizerWrapper(optimizers), []

    def closure():
        calls.append([group["lr"] for group in optimizers[0].param_groups])
        return torch.tensor(3.0)

    assert wrapper.step(closure, rate=0.5).item() == 3.0
    assert calls == [[0.5, 0.5]]
    assert [p.item() for p in parameters] == [0.5] * 3
    with pytest.raises(ZeroDivisionError):
        wrapper.step(lambda: 1 / 0, rate=0.5)
    assert [g["lr"] for o in optimizers for g in o.param_groups] == RATES
