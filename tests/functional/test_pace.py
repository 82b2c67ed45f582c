"""``speedup="auto"`` in the functional form: rest, resuming, and a new beginning."""

from __future__ import annotations

import pickle
from typing import Any

import functional_loops
import numpy as np
import pytest
from functional_loops import KINDS, batch, in_functions, loss_and_gradients, weights

from hybrid_predict import HybridConfig
from hybrid_predict.functional import correct, init, predict, verify

SMALL = 1e-4
"""A learning rate that is far too small."""

LIBRARIES = ("numpy", pytest.param("jax", marks=pytest.mark.slow))


def config(**settings: Any) -> HybridConfig:
    settings = {"speedup": "auto", "max_overhead": 1e9, **settings}
    return HybridConfig(total_steps=240, kinds=KINDS, **settings)


def test_noise_is_not_sped_up(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    shapes = {"0.weight": (99, 80), "0.bias": (9000,), "2.weight": (40, 40), "4.weight": (80, 99)}

    def noise(w: dict[str, Any], x: Any, y: Any) -> Any:
        return 1.0, {name: generator.normal(size=shape) for name, shape in shapes.items()}

    monkeypatch.setattr(functional_loops, "DECAY", 0.0)  # would move weights steadily
    monkeypatch.setattr(functional_loops, "weights", lambda: noise({}, 0, 0)[1])
    monkeypatch.setattr(functional_loops, "loss_and_gradients", noise)
    run = in_functions(config())
    assert not any(run.predicted)
    assert all(each.measured > 0 for each in run.state.policy.confidences.values())


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


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_resumes_from_its_state(train: Any) -> None:
    halfway = train(120)
    assert halfway[0].clock.full_steps < halfway[0].clock.steps
    whole, resumed = train(240, *halfway), train(240, *pickle.loads(pickle.dumps(halfway)))
    assert whole[0].clock == resumed[0].clock
    for name, wanted in whole[1].items():
        np.testing.assert_array_equal(resumed[1][name], wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_failed_test_leads_back_to_no_predicted_steps(train: Any) -> None:
    state, w = train(30)  # no window closes in the next steps
    for confidence in state.policy.confidences.values():
        confidence.advance = 2.0
    state.policy.evidence.wealth = 1e9
    state.policy.decide()
    state.policy.count_full_step()
    while not state.predicted:
        state, w = train(state.clock.steps + 1, state, w)
        if state.clock.ticks > 1:
            break
    assert state.policy.evidence.wealth == 0.0 and not state.policy.evidence.ended
    assert not state.policy.lasting
