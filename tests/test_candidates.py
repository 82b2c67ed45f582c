"""The learned forecasts behind decision 8 do what their formulas say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from hybrid_predict import (
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    LinearPredictor,
)
from hybrid_predict.backends import NumpyBackend
from hybrid_predict.testing.backends import TORCH
from hybrid_predict.testing.predictors import PREDICTOR_CHECKS, SHAPES, History, steps

DECISIONS = Path(__file__).parent.parent / "docs" / "decisions"


def lab(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DECISIONS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


averages, windows = lab("candidates"), lab("candidates_window")
foresight = [lab(name) for name in ("sweep", "earlier", "sweep_0008", "foresight_0008")][-1]
CANDIDATES = {
    "outer": averages.OuterNesterov(every=2),
    "ridge": averages.RidgePredictor(every=2),
    "ensemble": averages.EnsemblePredictor(
        members=(averages.RidgePredictor(every=1), LinearPredictor())
    ),
    "modes": windows.LowRankPredictor(size=4, stride=1),
    "anderson": windows.AndersonPredictor(size=3, stride=1),
    "nowcast": windows.NowcastPredictor(history=2, stride=1),
}
every_candidate = pytest.mark.parametrize("name", CANDIDATES)


def fed(predictor, moves):
    history = History(predictor)
    for arrays in moves:
        history.observe(arrays)
    return history


@every_candidate
@pytest.mark.parametrize("check", PREDICTOR_CHECKS)
def test_candidate_keeps_the_contract(name, check):
    PREDICTOR_CHECKS[check](CANDIDATES[name], TORCH)


@every_candidate
def test_candidate_has_a_forecast_by_the_time_the_contract_asks_for_one(name):
    assert any(np.any(x) for x in fed(CANDIDATES[name], steps()).forecast(2.0))


@every_candidate
def test_candidate_trains_in_the_engine(name):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    settings = {"predictors": {"hidden": CANDIDATES[name]}, "horizon": FixedHorizon(updates=0.5)}
    config = HybridConfig(speedup=1.2, total_steps=48, count_flops=False, **settings)
    inputs, losses = torch.randn(32, 4), []
    with HybridEngine(net, optimizer, config) as engine:
        while not engine.done:
            engine.before_step()
            loss = (net(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            engine.after_step(loss)
    assert not engine.clock.handed_over and engine.ledger.forecasts > 20
    assert losses[-1] < 0.8 * losses[0]


def test_outer_steps_settle_at_the_horizon_times_a_constant_update():
    (update,) = steps(count=1)
    history = fed(averages.OuterNesterov(every=3, momentum=0.5), [update] * 60)
    for found, u in zip(history.forecast(2.0), update, strict=True):
        np.testing.assert_allclose(found, 2.0 * u, rtol=1e-5)


def ridge_twin(moves, every, memory, alpha, decays=(0.8, 0.95, 0.99)):
    """One tensor; the penalised least squares on all entries of all fits at once."""
    backend, then, since = NumpyBackend(), None, 0.0
    means = [np.zeros_like(moves[0]) for _ in decays]
    blocks, coefficients = [], np.zeros(len(decays) + 2)
    for count, u in enumerate(moves, 1):
        since = since + u / every
        means = [g * m + (1 - g) * u for g, m in zip(decays, means, strict=True)]
        (flat,), _ = backend.flatten_spectrum(
            [u], [means[1]], [u], [1.0], backend.norms([means[1]]), 5
        )
        now = np.stack([x.ravel() for x in (u, *means, flat)], axis=1)
        if count % every == 0:
            if then is not None:
                length = np.linalg.norm(since)
                blocks = [(memory**0.5 * a, memory**0.5 * b) for a, b in blocks]
                blocks.append((then / length, since.ravel() / length))
                x, y = (np.concatenate(part) for part in zip(*blocks, strict=True))
                penalty = np.diag(alpha**0.5 * np.linalg.norm(x, axis=0))
                x, y = np.vstack([x, penalty]), np.concatenate([y, np.zeros(len(penalty))])
                coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
            then, since = now, 0.0
    return (now @ coefficients).reshape(moves[0].shape)


def test_ridge_is_the_penalised_least_squares_of_its_definition():
    predictor, moves = averages.RidgePredictor(every=3, memory=0.8, alpha=0.2), steps(count=13)
    for k, found in enumerate(fed(predictor, moves).forecast(2.0)):
        wanted = 2.0 * ridge_twin([np.asarray(m[k]) for m in moves], 3, 0.8, 0.2)
        # The torch kernels flatten in 32 bits.
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_ensemble_is_shortened_by_disagreement():
    (update,) = steps(count=1)
    linear, other = LinearPredictor(), averages.OuterNesterov(every=1, momentum=0.0)
    agreed = averages.EnsemblePredictor(members=(linear, other))
    for found, u in zip(fed(agreed, [update] * 3).forecast(2.0), update, strict=True):
        np.testing.assert_allclose(found, 2.0 * u, rtol=1e-6)
    backwards = [update, [-0.1 * u for u in update]]
    apart = averages.EnsemblePredictor(members=(LinearPredictor(decay=0.99), other))
    single = (fed(p, backwards).forecast(2.0) for p in apart.members)
    members = [np.stack(x) for x in zip(*single, strict=True)]
    for found, parts in zip(fed(apart, backwards).forecast(2.0), members, strict=True):
        mean, square = parts.mean(0), np.square(parts).sum() / 2
        agreement = np.linalg.norm(mean) / square**0.5
        assert agreement < 0.9
        np.testing.assert_allclose(found, agreement * mean, rtol=1e-6)


def modes_twin(blocks, count, rank):
    """Dynamic modes with the operator on all entries, block by block."""
    before, after = np.stack(blocks[:-1], axis=1), np.stack(blocks[1:], axis=1)
    u, s, vt = np.linalg.svd(before, full_matrices=False)
    u, s, vt = u[:, :rank], s[:rank], vt[:rank]
    values, vectors = np.linalg.eig(u.T @ after @ vt.T @ np.diag(1 / s))
    operator = vectors @ np.diag(values / np.maximum(1, np.abs(values))) @ np.linalg.inv(vectors)
    latent, total = u.T @ blocks[-1], 0.0
    for _ in range(count):
        latent = operator @ latent
        total = total + latent
    return (u @ total).real


def test_dynamic_modes_are_those_of_the_whole_operator():
    moves = steps(count=14)
    history = fed(windows.LowRankPredictor(size=6, stride=2, rank=2), moves)
    for k, name in enumerate(SHAPES):
        if name == "scalar":
            continue
        flat = [np.ravel(m[k]) for m in moves]
        blocks = [a + b for a, b in zip(flat[::2], flat[1::2], strict=True)][-6:]
        wanted = modes_twin(blocks, 3, 2)
        np.testing.assert_allclose(history.forecast(6.0)[k].ravel(), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("growth", "wanted"), [(0.5, 0.875), (-0.5, -0.375), (1.5, 3.0)])
def test_one_mode_is_continued_exactly_and_never_grows(growth, wanted):
    (first,) = steps(count=1)
    moves = [[growth**k * x for x in first] for k in range(6)]
    history = fed(windows.LowRankPredictor(size=5, stride=1), moves)
    for found, last in zip(history.forecast(3.0), moves[-1], strict=True):
        np.testing.assert_allclose(found, wanted * last, rtol=1e-6)


def anderson_twin(blocks, damping):
    """The way to the extrapolation, from explicit weights and the Lagrangian's linear system."""
    r = np.stack(blocks, axis=1)
    points = np.cumsum(r, axis=1)
    square = r.T @ r
    n = len(square)
    system = np.ones((n + 1, n + 1))
    system[:n, :n] = square + damping * np.linalg.norm(r, 2) ** 2 * np.eye(n)
    system[n, n] = 0.0
    c = np.linalg.solve(system, np.r_[np.zeros(n), 1.0])[:n]
    return points @ c - points[:, -1]


def test_anderson_extrapolates_as_its_definition_says():
    moves = steps(count=9)
    history = fed(windows.AndersonPredictor(size=3, stride=2, damping=0.1), moves)
    for k, found in enumerate(history.forecast(6.0)):
        flat = [np.ravel(m[k]) for m in moves[:8]]
        blocks = [a + b for a, b in zip(flat[::2], flat[1::2], strict=True)][-3:]
        np.testing.assert_allclose(np.ravel(found), anderson_twin(blocks, 0.1), rtol=1e-6)


def test_slopes_of_the_nowcast_are_those_of_autograd():
    torch.manual_seed(0)
    shapes = {"w": (3,), "v": (4,), "A": (3, 4), "b": (4,)}
    tables = {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}
    inputs, targets = torch.randn(7, 3), torch.randn(7)
    (0.5 * (windows._network(tables, inputs) - targets).square().mean()).backward()
    with torch.no_grad():
        for name, slope in windows._slopes(tables, inputs, targets).items():
            torch.testing.assert_close(slope, tables[name].grad)


def test_nowcast_learns_a_decay_that_all_weights_share():
    (first,) = steps(count=1)
    moves = [[0.7**k * x for x in first] for k in range(40)]
    history = fed(windows.NowcastPredictor(history=2, stride=1, rate=1e-2), moves)
    for found, last in zip(history.forecast(1.0), moves[-1], strict=True):
        np.testing.assert_allclose(found, 0.7 * last, rtol=0.15)


@pytest.mark.parametrize(
    ("factor", "turned", "given", "scaled", "alignment"),
    [(1.0, 0.0, 1.0, 1.0, 1.0), (0.5, 0.0, 0.75, 1.0, 1.0), (1.0, 1.0, 0.0, 0.5, 0.5**0.5),
     (-1.0, 0.0, -3.0, 0.0, -1.0)],
)  # fmt: skip
def test_shares_of_a_displacement_foreseen(factor, turned, given, scaled, alignment):
    sums, came = foresight.Sums(), torch.tensor([3.0, 4.0])
    forecast = factor * came + turned * torch.tensor([4.0, -3.0])
    for _ in range(2):
        sums.add([forecast], [came])
        sums.align([forecast], [-came])
    wanted = {"given": given, "scaled": scaled, "alignment": alignment}
    assert sums.shares() == pytest.approx(wanted, abs=1e-6)
