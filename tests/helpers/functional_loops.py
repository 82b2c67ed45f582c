"""One small training run, in the engine and in the functional form, for every array library."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.functional import correct, init, predict, verify
from hybrid_predict.functional.kernels import array_library
from hybrid_predict.policy.verdict import Evidence

RATE, DECAY = 3e-3, 0.05
KINDS = {"4.weight": "head"}


def network() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def weights() -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in network().named_parameters()}


def batch(k: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(100 + k)
    x = generator.normal(size=(16, 6))
    target = np.stack([np.sin(x[:, 0]), x[:, 1] * x[:, 2], x.sum(1)], 1)
    return x, target + 0.1 * generator.normal(size=target.shape)


def rate(step: int, total: int) -> float:
    return RATE * (0.55 + 0.45 * math.cos(math.pi * step / total))


def loss_and_gradients(w: dict[str, Any], x: Any, y: Any) -> tuple[Any, dict[str, Any]]:
    """Mean squared error of the network and its derivatives, with NumPy or JAX."""
    xp = array_library(x)
    first = xp.tanh(x @ w["0.weight"].T + w["0.bias"])
    second = xp.tanh(first @ w["2.weight"].T + w["2.bias"])
    off = second @ w["4.weight"].T + w["4.bias"] - y
    back, found = 2.0 * off / math.prod(y.shape), {}
    for name, inputs in (("4", second), ("2", first), ("0", x)):
        found[f"{name}.weight"] = back.T @ inputs
        found[f"{name}.bias"] = back.sum(0)
        back = (back @ w[f"{name}.weight"]) * (1.0 - inputs * inputs)
    return xp.mean(off * off), found


def adamw(
    w: dict[str, Any], g: dict[str, Any], moments: Any, eta: float
) -> tuple[dict[str, Any], Any]:
    """AdamW of torch's defaults, as a function."""
    means, squares, count = moments
    count = count + 1
    means = {n: 0.9 * m + 0.1 * g[n] for n, m in means.items()}
    squares = {n: 0.999 * s + 0.001 * g[n] * g[n] for n, s in squares.items()}
    sizes = {n: (s / (1.0 - 0.999**count)) ** 0.5 + 1e-8 for n, s in squares.items()}
    new = {
        n: (1.0 - eta * DECAY) * x - eta / (1.0 - 0.9**count) * means[n] / sizes[n]
        for n, x in w.items()
    }
    return new, (means, squares, count)


@dataclass
class Run:
    """Where a run has ended, and its predicted steps before every full step."""

    weights: dict[str, Any]
    steps: int
    predicted: list[int] = field(default_factory=list)
    undone: int = 0
    state: Any = None
    operations: float | None = None
    period: int | None = None
    evidence: Any = None


def same_runs(ours: Run, theirs: Run, atol: float = 1e-10) -> None:
    """Assert that two runs have taken and undone the same predicted steps to the same weights."""
    assert ours.predicted == theirs.predicted
    assert ours.undone == theirs.undone
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], wanted, rtol=0, atol=atol)


def in_the_engine(
    config: HybridConfig,
    spoiled: int | None = None,
    stop: int | None = None,
    risen: float = math.inf,
) -> Run:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    predicted = []
    assert config.total_steps is not None
    with HybridEngine(model, optimizer, config) as engine:
        while not engine.done and engine.ledger.full_steps != stop:
            optimizer.param_groups[0]["lr"] = rate(engine.ledger.steps, config.total_steps)
            engine.before_step()
            x, y = map(torch.tensor, batch(engine.ledger.full_steps))
            loss = F.mse_loss(model(x), y)
            if len(predicted) == spoiled:
                loss = loss * math.nan
            if len(predicted) >= risen:
                loss = loss + 1e6
            loss.backward()
            engine.observe_loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            predicted.append(engine.after_step(loss).predicted)
    named = {name: p.detach().numpy() for name, p in model.named_parameters()}
    counted, period = engine.ledger.flops_per_step, engine._state.groups.period
    evidence = getattr(engine._state.policy, "evidence", Evidence())  # none without predicted steps
    return Run(
        named, engine.ledger.steps, predicted, engine.ledger.undone_steps,
        operations=counted, period=period, evidence=evidence,
    )  # fmt: skip


def in_functions(
    config: HybridConfig,
    load: Callable[[np.ndarray], Any] = lambda array: array,
    spoiled: int | None = None,
    step_operations: float | None = None,
    pickled: bool = False,
) -> Run:
    w = {name: load(array) for name, array in weights().items()}
    state = init(w, config, momentum=0.9, step_operations=step_operations)
    zeros = {name: 0.0 * x for name, x in w.items()}
    moments, predicted = (zeros, zeros, 0), []
    assert config.total_steps is not None
    while state.clock.steps < config.total_steps:
        eta = rate(state.clock.steps, config.total_steps)
        state = pickle.loads(pickle.dumps(state)) if pickled else state
        w, state = predict(state, w, eta)
        x, y = map(load, batch(state.clock.full_steps))
        loss, gradients = loss_and_gradients(w, x, y)
        if len(predicted) == spoiled:
            loss, gradients = math.nan * loss, {n: math.nan * g for n, g in gradients.items()}
        predicted.append(state.predicted)
        stands, state = verify(state, gradients, loss)
        after, updated = adamw(w, gradients, moments, eta)
        moments = updated if stands else moments
        w, state = correct(state, gradients, w, after, eta, weight_decay=DECAY)
    named = {name: np.asarray(array) for name, array in w.items()}
    clock, evidence = state.clock, state.policy.evidence
    return Run(named, clock.steps, predicted, clock.undone_steps, state, evidence=evidence)
