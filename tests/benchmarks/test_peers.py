"""The benchmark's peers against naive NumPy twins of their papers' formulas."""

import copy
import sys
from functools import partial

import numpy as np
import pytest
import torch
from cases import OPTIMIZERS
from loops import NAN, Bench, make_config, same_bits, spoil_with
from peer_twins import (
    BETAS,
    DECAY,
    EPS,
    MATRICES,
    RATE,
    SHAPES,
    STEPS,
    Loop,
    assert_close,
    assert_same,
    gradients,
    start,
    twin_ema,
    twin_gpa,
    twin_muon,
    twin_nesterov,
    twin_outer,
    twin_schedule_free,
)
from torch.optim import SGD, AdamW

from benchmarks.peers.around import EMANesterov, OuterMomentum, ema_readout, lookahead, snoo
from benchmarks.peers.gpa import GPAAdamW
from benchmarks.peers.libraries import schedule_free
from benchmarks.peers.muon import Muon, SOAPMuon
from hybrid_predict import (
    ConfigError,
    MissingExtraError,
    UnsupportedSetupError,
    UsageError,
    Verdict,
)


def adamw(parameters):
    return AdamW(parameters, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY)


def two_adamw(parameters):
    return [adamw(parameters[:1]), adamw(parameters[1:])]


def gpa(parameters, **options):
    own = {"lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    return GPAAdamW(parameters, **own, **options)


def free(parameters):
    return schedule_free(parameters, RATE, BETAS, DECAY, warmup_steps=4)


def matched_muon(parameters):
    return Muon(parameters, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")


soap_muon = partial(SOAPMuon, lr=RATE)
own_peers = pytest.mark.parametrize(
    ("make", "shapes"), [(gpa, SHAPES), (matched_muon, MATRICES), (soap_muon, MATRICES)]
)


@pytest.mark.parametrize("inner", [adamw, two_adamw])
@pytest.mark.parametrize(
    ("wrap", "settings"),
    [
        (snoo, (20, 0.7, 0.67)),
        (lookahead, (5, 0.5, 0.0)),
        (partial(lookahead, every=6, rate=0.8), (6, 0.8, 0.0)),
        (partial(OuterMomentum, every=3, rate=1.2, momentum=0.9), (3, 1.2, 0.9)),
    ],
)
def test_outer_loop_follows_its_formulas(wrap, settings, inner):
    loop = Loop(lambda ps: wrap(inner(ps)))
    for steps in (STEPS, 2 * STEPS):
        assert_close(loop.train(STEPS).weights(), twin_outer(steps, *settings))


@pytest.mark.parametrize("inner", [adamw, two_adamw])
def test_nesterov_moves_ahead_in_the_middle_of_the_run(inner):
    loop = Loop(lambda ps: EMANesterov(inner(ps), factor=0.6, decay=0.9))
    loop.peer.plan(STEPS)
    assert_close(loop.train(STEPS).weights(), twin_nesterov(STEPS, 0.6, 0.9))


def test_nesterov_of_factor_0_is_its_inner_optimizer():
    wrapped = Loop(lambda ps: EMANesterov(adamw(ps), factor=0.0))
    wrapped.peer.plan(STEPS)
    assert_same(wrapped.train(STEPS).weights(), Loop(adamw).train(STEPS).weights())


def test_outer_loop_without_momentum_is_lookahead():
    left = Loop(lambda ps: snoo(adamw(ps), every=4, rate=0.6, momentum=0.0))
    right = Loop(lambda ps: lookahead(adamw(ps), every=4, rate=0.6))
    assert_same(left.train(STEPS).weights(), right.train(STEPS).weights())


def test_outer_loop_at_rate_1_without_momentum_is_its_inner_optimizer():
    wrapped = Loop(lambda ps: OuterMomentum(adamw(ps), every=2, rate=1.0, momentum=0.0))
    assert_same(wrapped.train(STEPS).weights(), Loop(adamw).train(STEPS).weights())


def test_outer_loop_every_step_over_sgd_is_nesterov_sgd():
    inner = partial(SGD, lr=0.02)
    outer = Loop(
        lambda ps: OuterMomentum(inner(ps), every=1, rate=1.0, momentum=0.9), SHAPES, False
    )
    plain = Loop(partial(SGD, lr=0.02, momentum=0.9, nesterov=True), SHAPES, False)
    assert_close(outer.train(STEPS).weights(), plain.train(STEPS).weights())


@pytest.mark.parametrize(
    ("make", "twin", "scheduled"),
    [
        (gpa, partial(twin_gpa, mu_x=0.9967, mu_y=0.7), True),
        (partial(gpa, mu_x=0.8, mu_y=0.3), partial(twin_gpa, mu_x=0.8, mu_y=0.3), True),
        (partial(gpa, fused=True), partial(twin_gpa, mu_x=0.9967, mu_y=0.7), True),
        (lambda ps: ema_readout(adamw(ps)), partial(twin_ema, decay=0.99), True),
        (lambda ps: ema_readout(two_adamw(ps), 0.7), partial(twin_ema, decay=0.7), True),
        (free, partial(twin_schedule_free, warmup=4), False),
    ],
    ids=["gpa", "gpa-other", "gpa-fused", "ema", "ema-other", "schedule-free"],
)
def test_training_and_evaluation_weights_follow_their_formulas(make, twin, scheduled):
    loop = Loop(make, scheduled=scheduled).train(STEPS)
    trained, evaluated = twin(STEPS)
    assert_close(loop.weights(), trained)
    loop.peer.eval()
    assert_close(loop.weights(), evaluated)
    loop.peer.train()
    loop.train(1)
    assert_close(loop.weights(), twin(STEPS + 1)[0])


READOUTS = {"gpa": gpa, "ema": lambda ps: ema_readout(adamw(ps))}
readouts = pytest.mark.parametrize("make", READOUTS.values(), ids=READOUTS.keys())


@readouts
def test_evaluation_leaves_no_trace_in_training(make):
    watched, plain = Loop(make), Loop(make)
    for _ in range(4):
        before = watched.train(3).weights()
        watched.peer.eval()
        evaluated = watched.weights()
        assert not np.array_equal(evaluated[0], before[0])
        watched.peer.eval()
        assert_same(watched.weights(), evaluated)
        for _ in range(2):
            watched.peer.train()
            assert_same(watched.weights(), before)
    assert_same(watched.weights(), plain.train(12).weights())


@readouts
def test_step_at_evaluation_weights_is_refused(make):
    loop = Loop(make).train(2)
    loop.peer.eval()
    with pytest.raises(UsageError, match="train"):
        loop.train(1)


@readouts
def test_evaluation_before_the_first_step_is_at_the_start(make):
    loop = Loop(make)
    loop.peer.eval()
    assert_same(loop.weights(), start())
    loop.peer.train()
    assert_same(loop.weights(), start())


def test_schedule_free_switches_weights_back():
    loop = Loop(free, scheduled=False).train(6)
    before = loop.weights()
    loop.peer.eval()
    loop.peer.train()
    assert_close(loop.weights(), before, rtol=1e-14)


def test_gpa_that_forgets_x_is_adamw():
    loop = Loop(partial(gpa, mu_x=0.0))
    assert_same(loop.train(STEPS).weights(), Loop(adamw).train(STEPS).weights())


def test_gpa_with_gradients_at_x_evaluates_where_it_trains():
    loop = Loop(partial(gpa, mu_y=1.0)).train(STEPS)
    before = loop.weights()
    loop.peer.eval()
    assert_same(loop.weights(), before)


@pytest.mark.parametrize("evaluating", [False, True])
@own_peers
def test_saved_state_continues_the_run(make, shapes, evaluating):
    whole, loop = Loop(make, shapes), Loop(make, shapes).train(7)
    switched = evaluating and hasattr(loop.peer, "eval")
    if switched:
        loop.peer.eval()
    resumed = Loop(make, shapes)
    with torch.no_grad():
        for p, q in zip(resumed.parameters, loop.parameters, strict=True):
            p.copy_(q)
    resumed.peer.load_state_dict(copy.deepcopy(loop.peer.state_dict()))
    resumed.schedulers[0].load_state_dict(loop.schedulers[0].state_dict())
    resumed.taken = 7
    if switched:
        resumed.peer.train()
    assert_same(resumed.train(5).weights(), whole.train(12).weights())


@own_peers
def test_step_runs_its_closure_and_its_hooks_once(make, shapes):
    loop, calls = Loop(make, shapes).train(1), []  # SOAP-Muon's first step moves nothing
    before = loop.weights()
    loop.peer.register_step_pre_hook(lambda *_: calls.append("before"))
    loop.peer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure():
        calls.append("closure")
        loss = sum((p**2).sum() for p in loop.parameters)
        loss.backward()
        return loss.item()

    expected = sum((w**2).sum() for w in loop.weights())
    assert loop.peer.step(closure) == pytest.approx(expected)
    assert calls == ["before", "closure", "after"]
    assert not np.array_equal(loop.weights()[0], before[0])


@own_peers
def test_parameter_without_gradient_stays(make, shapes):
    loop = Loop(make, shapes)
    loop.parameters[0].grad = torch.ones(shapes[0], dtype=torch.float64)
    for _ in range(2):
        loop.peer.step()
    moved = [not np.array_equal(w, s) for w, s in zip(loop.weights(), start(shapes), strict=True)]
    assert moved == [True, False, False]
    assert set(loop.peer.state) == {loop.parameters[0]}
    held = loop.peer.state[loop.parameters[0]].values()
    assert all(x.grad is None for x in held if isinstance(x, torch.Tensor))
    loop.peer.zero_grad()
    loop.peer.step()


@pytest.mark.parametrize("options", [{}, {"adjust_lr_fn": "match_rms_adamw"}, {"nesterov": False}])
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
def test_muon_reads_a_kernel_as_a_matrix(layout):
    shape = (5, 3, 2, 2)
    kernel, matrix = (
        Loop(partial(Muon, lr=RATE), (shape,)),
        Loop(partial(Muon, lr=RATE), ((5, 12),)),
    )
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


def test_muon_follows_its_formulas_within_its_half_precision():
    found, wanted = Loop(matched_muon, MATRICES).train(STEPS).weights(), twin_muon(STEPS)
    for x, y, before in zip(found, wanted, start(MATRICES), strict=True):
        assert np.linalg.norm(x - y) < 0.03 * np.linalg.norm(y - before)


def test_engine_corrects_and_predicts_on_muon_and_undoes_a_spoiled_step(monkeypatch):
    monkeypatch.setitem(
        OPTIMIZERS, "muon", lambda ps: Muon([p for p in ps if p.dim() > 1], lr=0.01)
    )
    bench = Bench(make_config(), "mlp", "muon")
    while not (record := bench.step()).predicted:
        before = bench.trace()
    assert record.verdict is Verdict.STANDS
    assert not same_bits(before["model"], bench.trace()["model"])
    bench.step()
    before = bench.trace()
    record = bench.step(spoil=spoil_with(factor=NAN))
    assert (record.predicted, record.verdict) == (1, Verdict.UNDONE)
    after = bench.trace()
    assert same_bits(before["model"], after["model"])
    assert same_bits(before["optimizer"], after["optimizer"])


@pytest.mark.parametrize("make", [matched_muon, partial(SOAPMuon, lr=0.01)])
def test_muon_and_what_is_built_on_it_need_a_torch_that_has_it(make, monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(UnsupportedSetupError, match=r"torch 2\.9.*Upgrade torch"):
        Loop(make, MATRICES)


def test_schedule_free_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(MissingExtraError, match=r"Schedule-Free AdamW.*hybrid_predict\[bench\]"):
        Loop(free)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("params", matched_muon),
        ("mu_x", partial(gpa, mu_x=1.1)),
        ("mu_y", partial(gpa, mu_y=0.0)),
        ("every", lambda ps: snoo(adamw(ps), every=0)),
        ("rate", lambda ps: lookahead(adamw(ps), rate=0.0)),
        ("momentum", lambda ps: snoo(adamw(ps), momentum=1.0)),
        ("decay", lambda ps: ema_readout(adamw(ps), 1.0)),
        ("factor", lambda ps: EMANesterov(adamw(ps), factor=-0.1)),
        ("decay", lambda ps: EMANesterov(adamw(ps), decay=1.0)),
    ],
)
def test_bad_argument_is_refused_by_name(argument, make):
    with pytest.raises(ConfigError, match=f"^{argument}: expected"):
        Loop(make)
