"""The benchmark's peers: their formulas, what they need, and which matrices they get."""

from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import optimizers
from benchmarks.optimizers import Muon, Rates, SOAPMuon, hidden_and_rest
from benchmarks.tasks import TASKS

SHAPES = ((4, 3), (3, 7), (5, 5))
RATE = 0.03
DECAY = 0.1
STEPS = 12


def start():
    generator = np.random.default_rng(3)
    return [generator.normal(size=shape) for shape in SHAPES]


def gradients(t, weights):
    """A rough quadratic's gradient with noise: it depends on the step and on the weights."""
    generator = np.random.default_rng(100 + t)
    return [w + generator.normal(size=w.shape) for w in weights]


def trained(make):
    """The weights after steps with an optimizer."""
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start()]
    peer = make(parameters)
    for t in range(STEPS):
        found = gradients(t, [p.detach().numpy() for p in parameters])
        for p, g in zip(parameters, found, strict=True):
            p.grad = torch.tensor(g)
        peer.step()
    return [p.detach().numpy().copy() for p in parameters]


def assert_same(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw"}])
def test_muon_is_torchs_on_matrices(options):
    made = [partial(cls, lr=RATE, **options) for cls in (Muon, torch.optim.Muon)]
    assert_same(*map(trained, made))


@pytest.mark.parametrize("make", [Muon, SOAPMuon])
def test_kernels_are_read_as_matrices(make):
    kernel = torch.nn.Parameter(torch.randn(4, 3, 2, 2, generator=torch.manual_seed(0)))
    matrix = torch.nn.Parameter(kernel.detach().flatten(1).clone())
    for p in (kernel, matrix):
        optimizer = make([p], lr=RATE)
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            p.grad = torch.randn(4, 12, generator=generator).view(p.shape)
            optimizer.step()
    assert torch.equal(kernel.detach().flatten(1), matrix)


HIDDEN = {name: getattr(optimizers, name) for name in ("muon", "normuon", "soap", "soap_muon")}


@pytest.mark.parametrize("build", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("name", ["resnet", "lora"])
def test_hidden_matrices_have_the_peer_and_the_rest_adamw(build, name):
    task = TASKS[name].tiny()
    model = task.model(0)
    hidden, rest = hidden_and_rest(model)
    made = build(model, task.recipe, Rates(0.01, 3.0), 100)
    found = [{id(p) for g in o.param_groups for p in g["params"]} for o in made]
    assert found == [{id(p) for p in part} for part in (hidden, rest) if part]
    assert [o.param_groups[0]["lr"] for o in made] == pytest.approx([0.03, 0.01][: len(made)])
    assert all(o.param_groups[0]["weight_decay"] == task.recipe.weight_decay for o in made)
    assert [type(o).__name__ for o in made[1:]] == ["AdamW"] * bool(rest)
