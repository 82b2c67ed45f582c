"""The decay of the average of gradients that an optimizer follows is measured, not only read."""

import pytest
import torch
from own_optimizers import Lion
from torch import nn

from hybrid_predict.torch.noise import noise_decay


def measured(optimizer, known):
    return noise_decay(optimizer, optimizer.param_groups[0], known)


KNOWN = {
    "adamw, .99": (lambda ps: torch.optim.AdamW(ps, betas=(0.99, 0.999)), 0.99),
    "nadam": (lambda ps: torch.optim.NAdam(ps), 0.9),
    "sgd, momentum": (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True), 0.9),
    "rmsprop": (lambda ps: torch.optim.RMSprop(ps, momentum=0.8), 0.8),
    "adagrad": (lambda ps: torch.optim.Adagrad(ps), 0.0),
    "rprop": (lambda ps: torch.optim.Rprop(ps), 0.0),
    "adafactor": (lambda ps: torch.optim.Adafactor(ps), 0.0),
}


@pytest.mark.parametrize(("make", "known"), KNOWN.values(), ids=KNOWN.keys())
def test_a_decay_that_the_options_tell_stays_what_it_is(make, known):
    assert measured(make([nn.Parameter(torch.ones(3))]), known) == known


@pytest.mark.parametrize("decay", [0.95, 0.98, 0.99])
def test_a_decay_that_they_do_not_tell_is_measured(decay):
    optimizer = Lion([nn.Parameter(torch.ones(3))], betas=(0.9, decay))
    assert measured(optimizer, 0.9) == pytest.approx(decay, abs=0.005)


def test_an_optimizer_that_cannot_be_tried_keeps_what_its_options_tell():
    optimizer = Lion([nn.Parameter(torch.ones(3))])
    optimizer.file = open(__file__)  # noqa: SIM115
    assert measured(optimizer, 0.9) == 0.9
    optimizer.file.close()
