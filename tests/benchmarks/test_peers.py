"""The benchmark's peers against naive NumPy twins of their papers' formulas."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from peer_twins import (
    DECAY,
    MATRICES,
    RATE,
    SQUARES,
    STEPS,
    Loop,
    assert_close,
    assert_same,
    gradients,
    start,
    twin_soap_muon,
)

from benchmarks import optimizers
from benchmarks.optimizers import Rates, hidden_and_rest
from benchmarks.peers import libraries
from benchmarks.peers.dowg import DoWG
from benchmarks.peers.muon import Muon, SOAPMuon
from benchmarks.tasks import TASKS
from hybrid_predict.errors import MissingExtraError, UnsupportedSetupError


def matched_muon(parameters):
    return Muon(parameters, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")


@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw"}])
def test_muon_is_torchs_on_matrices(options):
    shapes = ((6, 4), (4, 6), (5, 5))
    loops = [Loop(partial(cls, lr=RATE, **options), shapes) for cls in (Muon, torch.optim.Muon)]
    own, other = (loop.train(STEPS) for loop in loops)
    assert_same(own.weights(), other.weights())
    for p, q in zip(own.parameters, other.parameters, strict=True):
        assert torch.equal(
            own.peer.state[p]["momentum_buffer"], other.peer.state[q]["momentum_buffer"]
        )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("peer", [Muon, SOAPMuon])
def test_a_kernel_is_read_as_a_matrix(peer, layout):
    shape = (5, 3, 2, 2)
    kernel, matrix = (Loop(partial(peer, lr=RATE), shapes) for shapes in ((shape,), ((5, 12),)))
    with torch.no_grad():
        p = kernel.parameters[0]
        p.data = p.to(memory_format=layout)
        matrix.parameters[0].copy_(p.reshape(5, 12))
    for t in range(STEPS):
        (g,) = gradients(t, kernel.weights())
        kernel.parameters[0].grad = torch.tensor(g).to(memory_format=layout)
        matrix.parameters[0].grad = torch.tensor(g).reshape(5, 12)
        kernel.peer.step()
        matrix.peer.step()
    assert kernel.parameters[0].is_contiguous(memory_format=layout)
    assert_same([kernel.weights()[0].reshape(5, 12)], matrix.weights())


@pytest.mark.parametrize("make", [matched_muon, partial(SOAPMuon, lr=0.01)])
def test_muon_and_what_is_built_on_it_need_a_torch_that_has_it(make, monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UnsupportedSetupError, match=r"torch 2\.9.*Upgrade torch"):
        Loop(make, MATRICES)


LIBRARY = {
    name: partial(getattr(libraries, name), lr=RATE, weight_decay=DECAY)
    for name in ("normuon", "soap")
}
library = pytest.mark.parametrize("make", LIBRARY.values(), ids=LIBRARY)


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.8, "beta": 0.9, "every": 3}], ids=["default", "other"]
)
def test_soap_muon_follows_its_formulas_within_its_half_precision(settings):
    make = partial(SOAPMuon, lr=RATE, weight_decay=DECAY, **settings)
    found, wanted = Loop(make, SQUARES).train(STEPS).weights(), twin_soap_muon(STEPS, **settings)
    for x, y, before in zip(found, wanted, start(SQUARES), strict=True):
        assert np.linalg.norm(x - y) < 0.03 * np.linalg.norm(y - before)


@library
def test_a_peer_of_a_library_trains_every_dimension_of_a_kernel(make):
    loop, before = Loop(make, MATRICES).train(STEPS), start(MATRICES)
    for x, y in zip(loop.weights(), before, strict=True):
        assert np.isfinite(x).all()
        assert (x != y).all()


HIDDEN = {name: getattr(optimizers, name) for name in ("muon", "normuon", "soap", "soap_muon")}


@library
def test_the_global_random_state_is_neither_read_nor_moved(make, after_seeds):
    assert_same(*after_seeds(lambda: Loop(make, MATRICES).train(5).weights()))


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


@pytest.mark.parametrize(
    ("name", "package"),
    [
        *((name, "pytorch_optimizer") for name in (*LIBRARY, "prodigy", "d_adapt_adam")),
        ("schedule_free", "schedulefree"),
        ("mechanic", "mechanic_pytorch"),
    ],
)
def test_peers_from_a_library_need_it(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"hybrid_predict\[bench\]"):
        Loop(partial(getattr(libraries, name), lr=RATE))


@pytest.mark.parametrize("name", ["prodigy", "d_adapt_adam", "mechanic"])
def test_a_peer_without_a_learning_rate_finds_one(name):
    start = 10.0
    weight = torch.full((4, 4), start, requires_grad=True)
    optimizer = getattr(libraries, name)([weight], lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    assert weight.abs().max() < 0.2 * start


def test_dowg_follows_its_formulas():
    loop = Loop(DoWG, scheduled=False).train(STEPS)
    weights = first = start()
    squared, weighted = 1e-4, 0.0
    for step in range(STEPS):
        slopes = gradients(step, weights)
        moved = sum(((w - w0) ** 2).sum() for w, w0 in zip(weights, first, strict=True))
        squared = max(squared, moved)
        weighted += squared * sum((g**2).sum() for g in slopes)
        size = squared / weighted**0.5
        weights = [w - size * g for w, g in zip(weights, slopes, strict=True)]
    assert_close(loop.weights(), weights)


def test_dowg_waits_for_a_gradient():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.zeros(3)
    DoWG([weight]).step()
    assert weight.tolist() == [1.0] * 3
