"""Optimizers that go along gradients: a negative rate, or an update of the other sign."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import functional_loops
import numpy as np
import pytest
import torch
from functional_loops import KINDS, in_functions, loss_and_gradients, weights
from functional_loops import batch as make_batch

from hybrid_predict import HybridConfig, MomentumPredictor

UNGATED = {"hidden": MomentumPredictor(gated=False)}
BY_FUNCTIONS = {"numpy": np.asarray, "torch": torch.tensor}


def config(**settings: Any) -> HybridConfig:
    return HybridConfig(kinds=KINDS, max_overhead=1e9, **settings)


@pytest.mark.parametrize("library", BY_FUNCTIONS)
def test_a_negative_rate_up_the_negative_loss_goes_down_the_loss(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional_loops, "DECAY", 0.0)
    settings = config(total_steps=60, predictors=UNGATED)
    down = in_functions(settings, BY_FUNCTIONS[library])

    def negated(*given: Any) -> Any:
        loss, gradients = loss_and_gradients(*given)
        return loss, {name: -g for name, g in gradients.items()}

    monkeypatch.setattr(functional_loops, "RATE", -functional_loops.RATE)
    monkeypatch.setattr(functional_loops, "loss_and_gradients", negated)
    up = in_functions(settings, BY_FUNCTIONS[library])
    assert up.predicted == down.predicted
    assert sum(up.predicted) > 0
    for name, wanted in down.weights.items():
        np.testing.assert_array_equal(up.weights[name], wanted)


def loss(w: dict[str, Any], x: Any, y: Any, sign: float = 1.0) -> Any:
    return sign * loss_and_gradients(w, x, y)[0]


def uphill(optax: Any, rate: Any) -> Any:
    return optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(rate, flip_sign=False))


def downhill(optax: Any, rate: Any) -> Any:
    return optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(rate))


def of_whole_leaves(optax: Any, rate: Any) -> Any:
    """An optimizer that can update leaves of the model's own shapes alone."""
    masks = {name: np.ones(x.shape) for name, x in weights().items()}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return {name: -rate * masks[name] * g for name, g in updates.items()}, state

    return optax.GradientTransformation(lambda params: (), update)


def transformed(optimizer: Any, rate: Any, sign: float = 1.0, correct: bool = True) -> Any:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    from hybrid_predict.integrations.optax import corrected

    if correct:
        optimizer = corrected(
            optimizer, rate, config(speedup=1, total_steps=99), outputs_last=False
        )

    @jax.jit
    def step(w: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(w, x, y, sign), state, w)
        return optax.apply_updates(w, updates), state

    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    state = optimizer.init(w)
    for k in range(12):
        w, state = step(w, state, *make_batch(k))
    return w


ASCENTS = {
    "a custom update": (uphill, 0.01),
    "a negative rate": (downhill, -0.01),
    "a negative schedule": (downhill, lambda k: -0.01 / (k + 1)),
}


@pytest.mark.parametrize("name", ASCENTS)
def test_a_transformation_follows_the_direction_of_the_optimizer(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    optax = pytest.importorskip("optax")
    make, rate = ASCENTS[name]
    positive = (lambda k: -rate(k)) if callable(rate) else abs(rate)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        up = transformed(make(optax, rate), rate, -1.0)
        down = transformed(downhill(optax, positive), positive)
        plain = transformed(downhill(optax, positive), positive, correct=False)
    assert not caplog.records
    for key, wanted in down.items():
        np.testing.assert_array_equal(up[key], wanted)
    assert not np.array_equal(plain["2.weight"], down["2.weight"])


def test_a_transformation_of_unknown_direction_is_left_alone_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    optax = pytest.importorskip("optax")
    optimizer = of_whole_leaves(optax, 0.01)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        ours = transformed(optimizer, 0.01)
    assert "goes against gradients or along" in caplog.text
    plain = transformed(optimizer, 0.01, correct=False)
    for key, wanted in plain.items():
        np.testing.assert_allclose(ours[key], wanted, rtol=0, atol=1e-6)


def test_a_train_step_follows_the_direction_of_the_optimizer() -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    from hybrid_predict.integrations.optax import train_step

    settings, ends = config(total_steps=40, predictors=UNGATED, watch_loss=False), []
    for sign, make in ((1.0, downhill), (-1.0, uphill)):
        differentiated = jax.value_and_grad(partial(loss, sign=sign))
        init, step = train_step(
            differentiated, partial(make, optax), 0.01, settings, outputs_last=False
        )
        state, predicted = init(weights()), 0
        for k in range(24):
            state, record = step(state, *make_batch(k))
            predicted += int(record.predicted)
        assert predicted > 0
        ends.append(state.params)
    for key, wanted in ends[0].items():
        np.testing.assert_array_equal(ends[1][key], wanted)
