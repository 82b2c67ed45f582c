"""Rows whose gradient is masked on the way stand still, as in the engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from functional_loops import KINDS, batch, loss_and_gradients, network, weights
from torch.nn import functional as F

from hybrid_predict import FittedPredictor, HybridConfig, HybridEngine
from hybrid_predict.functional import correct, init, predict, verify

RATE, FROM, FROZEN = 0.05, 25, slice(4, None)
SETTINGS = HybridConfig(
    total_steps=90, kinds=KINDS, max_overhead=1e9,
    predictors={"hidden": FittedPredictor(gated=False)},
)  # fmt: skip


def masked(gradient: Any, step: int) -> Any:
    gradient = gradient.clone() if isinstance(gradient, torch.Tensor) else gradient.copy()
    if step >= FROM:
        gradient[FROZEN] = 0.0
    return gradient


def in_the_engine(decay: float) -> list[np.ndarray]:
    model, seen = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=decay)
    weight = model.get_parameter("2.weight")
    with HybridEngine(model, optimizer, SETTINGS) as engine:
        weight.register_hook(lambda g: masked(g, engine.ledger.full_steps))
        while not engine.done:
            engine.before_step()
            seen.append(weight.detach().numpy().copy())
            x, y = map(torch.tensor, batch(engine.ledger.full_steps))
            loss = F.mse_loss(model(x), y)
            loss.backward()
            engine.observe_loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            seen.append(weight.detach().numpy().copy())
    return seen


def in_functions(decay: float) -> list[np.ndarray]:
    w, seen = weights(), []
    state = init(w, SETTINGS)
    while state.clock.steps < 90:
        w, state = predict(state, w, RATE, config=SETTINGS)
        seen.append(w["2.weight"])
        step = state.clock.full_steps
        loss, gradients = loss_and_gradients(w, *batch(step))
        gradients["2.weight"] = masked(gradients["2.weight"], step)
        _, state = verify(state, gradients, loss)
        after = {n: x - RATE * (gradients[n] + decay * x) for n, x in w.items()}
        w, state = correct(
            state, gradients, w, after, RATE, config=SETTINGS, weight_decay=decay
        )  # fmt: skip
        seen.append(w["2.weight"])
    return seen


def test_masked_rows_stand_still_as_in_the_engine() -> None:
    decay = 0.1
    ours, theirs = in_functions(decay), in_the_engine(decay)
    assert len(ours) == len(theirs)
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=0, atol=1e-10)
    later = [x[FROZEN] for x in ours[2 * FROM + 1 :]]
    moved = [np.abs(b - a).max() for a, b in pairwise(later)]
    assert max(moved[::2]) == 0.0  # predicted steps
    assert max(moved) <= 1.001 * RATE * decay * np.abs(later[0]).max()
    assert np.abs(ours[-1] - ours[2 * FROM])[:4].min() > 0
