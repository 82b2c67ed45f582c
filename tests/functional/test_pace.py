"""``speedup="auto"`` in the functional form: rest, resuming, and a new beginning."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import functional_loops
import numpy as np
import pytest
from functional_loops import KINDS, batch, in_functions, loss_and_gradients, weights

from hybrid_predict import HybridConfig
from hybrid_predict.errors import ConfigError
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
    assert all(pace.windows > 0 for pace in run.state.pacing.paces.values())


def step(state: Any, w: Any, x: Any, y: Any, *, settings: HybridConfig) -> Any:
    w, state = predict(state, w, SMALL, config=settings)
    loss, gradients = loss_and_gradients(w, x, y)
    _, state = verify(state, gradients, loss)
    after = {name: x - SMALL * gradients[name] for name, x in w.items()}
    return correct(state, gradients, w, after, SMALL, config=settings)[::-1]


@pytest.fixture
def train(tools: dict[str, Any]) -> Any:
    """A function that trains until so many steps are done, from nothing if there is no state."""
    settings, load = config(), tools["load"]
    call = tools["jit"](partial(step, settings=settings))

    def trained(until: int, state: Any = None, w: Any = None) -> Any:
        w = w or {name: load(x) for name, x in weights().items()}
        state = state or init(w, settings)
        while state.clock.steps < until:
            state, w = call(state, w, *map(load, batch(int(state.clock.full_steps))))
        return state, w

    return trained


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_resumes_from_its_state(train: Any) -> None:
    halfway = train(120)
    assert halfway[0].clock.full_steps < halfway[0].clock.steps
    whole, resumed = train(240, *halfway), train(240, *pickle.loads(pickle.dumps(halfway)))
    assert int(whole[0].clock.full_steps) == int(resumed[0].clock.full_steps)
    for name, wanted in whole[1].items():
        np.testing.assert_array_equal(resumed[1][name], wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_failed_test_leads_back_to_no_predicted_steps(train: Any, tools: Any) -> None:
    two, much = (tools["load"](np.asarray(x)) for x in (2.0, 1e9))
    state, w = train(30)  # no window closes in the next step
    paces = {kind: pace._replace(advance=two) for kind, pace in state.pacing.paces.items()}
    state = state._replace(
        evidence=state.evidence._replace(wealth=much),
        pacing=state.pacing._replace(paces=paces, credit=two),
    )
    before = state.clock.steps
    state, w = train(before + 1, state, w)
    assert state.clock.ticks > 1
    assert float(state.evidence.wealth) == float(state.evidence.ended) == 0.0
    assert not any(float(pace.advance) for pace in state.pacing.paces.values())


@pytest.mark.parametrize(("made", "given"), [("auto", 1.5), (1.5, "auto")])
def test_a_state_of_another_speedup_is_refused(made: Any, given: Any) -> None:
    own = {"predictors": {"hidden": "fitted"}}
    state = init(weights(), config(speedup=made, **own))
    with pytest.raises(ConfigError, match=r"^state: .*speedup.*Give init"):
        predict(state, weights(), SMALL, config=config(speedup=given, **own))
