"""``speedup="auto"`` in the functional form resumes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from functional_loops import KINDS, batch, loss_and_gradients, weights

from hybrid_predict import HybridConfig
from hybrid_predict.functional import correct, init, predict, verify

SMALL = 1e-4
"""A learning rate that is far too small."""


def config(**settings: Any) -> HybridConfig:
    settings = {"speedup": "auto", "max_overhead": 1e9, **settings}
    return HybridConfig(total_steps=240, kinds=KINDS, **settings)


def step(state: Any, w: Any, x: Any, y: Any, settings: HybridConfig) -> Any:
    w, state = predict(state, w, SMALL, config=settings)
    loss, gradients = loss_and_gradients(w, x, y)
    _, state = verify(state, gradients, loss)
    after = {name: x - SMALL * gradients[name] for name, x in w.items()}
    return correct(state, gradients, w, after, SMALL, config=settings)[::-1]


@pytest.fixture
def train(tools: dict[str, Any]) -> Any:
    """A function that trains until so many steps are done, from nothing if there is no state."""
    settings, load = config(), tools["load"]

    def trained(until: int, state: Any = None, w: Any = None) -> Any:
        w = w or {name: load(x) for name, x in weights().items()}
        state = state or init(w, settings)
        while state.clock.steps < until:
            state, w = step(state, w, *map(load, batch(state.clock.full_steps)), settings)
        return state, w

    return trained


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_run_resumes_from_its_state(train: Any) -> None:
    halfway = train(120)
    assert halfway[0].clock.full_steps < halfway[0].clock.steps
    whole, resumed = train(240, *halfway), train(240, *pickle.loads(pickle.dumps(halfway)))
    assert whole[0].clock == resumed[0].clock
    for name, wanted in whole[1].items():
        np.testing.assert_array_equal(resumed[1][name], wanted)
