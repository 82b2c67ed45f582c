"""Peers that precondition or level, against naive NumPy twins of their papers' formulas."""

import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from peer_twins import (
    DECAY,
    EPS,
    MATRICES,
    RATE,
    SHAPES,
    SQUARES,
    STEPS,
    Loop,
    assert_close,
    assert_same,
    gradients,
    start,
    twin_ademamix,
    twin_kron,
    twin_normuon,
    twin_soap,
    twin_soap_muon,
)

from benchmarks import optimizers
from benchmarks.optimizers import Rates
from benchmarks.peers import libraries
from benchmarks.peers.soap_muon import SOAPMuon
from benchmarks.tasks import TASKS
from hybrid_predict import ConfigError, MissingExtraError
from hybrid_predict.torch.kinds import hidden_and_rest

SETTINGS = {"lr": RATE, "weight_decay": DECAY}
normuon, soap, kron = (partial(f, **SETTINGS) for f in
                       (libraries.normuon, libraries.soap, libraries.kron))  # fmt: skip
ademamix = partial(libraries.ademamix, **SETTINGS)
soap_muon = partial(SOAPMuon, **SETTINGS)

PEERS = {"normuon": normuon, "soap": soap, "ademamix": ademamix, "kron": kron,
         "soap-muon": soap_muon}  # fmt: skip
peers = pytest.mark.parametrize("make", PEERS.values(), ids=PEERS)


@pytest.mark.parametrize(
    ("make", "twin", "shapes", "settings"),
    [
        (normuon, twin_normuon, MATRICES, {}),
        (normuon, twin_normuon, MATRICES, {"momentum": 0.8, "beta2": 0.7}),
        (soap_muon, twin_soap_muon, SQUARES, {}),
        (soap_muon, twin_soap_muon, SQUARES, {"momentum": 0.8, "beta": 0.9, "every": 3}),
    ],
)
def test_peer_follows_its_formulas_within_its_half_precision(make, twin, shapes, settings):
    loop = Loop(partial(make, **settings), shapes)
    near(loop.train(STEPS).weights(), twin(STEPS, **settings), start(shapes))


def near(found, wanted, first):
    for x, y, before in zip(found, wanted, first, strict=True):
        assert np.linalg.norm(x - y) < 0.03 * np.linalg.norm(y - before)


@pytest.mark.parametrize(("every", "beta"), [(10, 0.95), (3, 0.9)])
def test_soap_follows_its_formulas(every, beta):
    loop = Loop(partial(soap, betas=(beta, beta), every=every), SQUARES)
    # Bases are turned in single precision.
    assert_close(loop.train(STEPS).weights(), twin_soap(STEPS, beta, every), rtol=1e-4)


@pytest.mark.parametrize("updates", [None, 10, STEPS, 200])
def test_ademamix_follows_its_formulas(updates):
    betas = (0.9, 0.97, 0.995)
    loop = Loop(partial(ademamix, betas=betas, alpha=3.0, updates=updates))
    assert EPS == 1e-8
    assert_close(loop.train(STEPS).weights(), twin_ademamix(STEPS, betas, 3.0, updates))


def test_kron_follows_its_formulas():
    loop = Loop(kron, MATRICES[:2])
    # Factors are kept in single precision.
    assert_close(loop.train(STEPS).weights(), twin_kron(STEPS), rtol=1e-3)


@peers
def test_every_dimension_of_a_kernel_is_trained(make):
    loop, before = Loop(make, MATRICES).train(STEPS), start(MATRICES)
    for x, y in zip(loop.weights(), before, strict=True):
        assert np.isfinite(x).all()
        assert (x != y).all()


@peers
def test_the_global_random_state_is_neither_read_nor_moved(make):
    def states():
        return torch.get_rng_state(), random.getstate(), np.random.get_state()

    found = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = states()
        found.append(Loop(make, MATRICES).train(5).weights())
        after = states()
        assert torch.equal(before[0], after[0])
        assert before[1] == after[1]
        assert before[2][2:] == after[2][2:]
        assert (before[2][1] == after[2][1]).all()
    assert_same(*found)


def test_soap_muon_reads_a_kernel_of_any_layout_as_a_matrix():
    shape = (5, 3, 2, 2)
    kernel, matrix = Loop(soap_muon, (shape,)), Loop(soap_muon, ((5, 12),))
    with torch.no_grad():
        p = kernel.parameters[0]
        p.data = p.to(memory_format=torch.channels_last)
        matrix.parameters[0].copy_(p.reshape(5, 12))
    for t in range(5):
        (g,) = gradients(t, kernel.weights())
        p.grad = torch.tensor(g).to(memory_format=torch.channels_last)
        matrix.parameters[0].grad = torch.tensor(g).reshape(5, 12)
        kernel.peer.step()
        matrix.peer.step()
    assert p.is_contiguous(memory_format=torch.channels_last)
    assert_same([kernel.weights()[0].reshape(5, 12)], matrix.weights())


HIDDEN = {name: getattr(optimizers, name) for name in ("muon", "normuon", "soap", "soap_muon",
                                                       "kron")}  # fmt: skip


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


def test_ademamix_trains_everything_and_rises_over_the_whole_run():
    task = TASKS["resnet"].tiny()
    model = task.model(0)
    (made,) = optimizers.ademamix(model, task.recipe, Rates(0.01), 77)
    (group,) = made.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}
    assert (group["t_alpha_beta3"], group["betas"]) == (77, (*task.recipe.betas, 0.999))


@pytest.mark.parametrize("name", ["normuon", "soap", "ademamix", "kron"])
def test_peers_from_a_library_need_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingExtraError, match=r"hybrid_predict\[bench\]"):
        Loop(PEERS[name])


def test_kron_needs_a_plan_for_its_products(monkeypatch):
    monkeypatch.setattr(torch.backends.opt_einsum, "is_available", lambda: False)
    with pytest.raises(MissingExtraError, match=r"Kron.*hybrid_predict\[bench\]"):
        Loop(kron)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("params", lambda _: SOAPMuon([torch.zeros(3)])),
        ("beta", partial(soap_muon, beta=1.0)),
        ("every", partial(soap_muon, every=0)),
    ],
)
def test_bad_argument_is_refused_by_name(argument, make):
    with pytest.raises(ConfigError, match=f"^{argument}: expected"):
        Loop(make, SHAPES[:1])
