"""``speedup="auto"`` in the functional form: the engine's numbers, rest, and resuming."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import functional_loops
import numpy as np
import pytest
from functional_loops import KINDS, batch, in_functions, in_the_engine, loss_and_gradients, weights

from hybrid_predict import ConfigError, HybridConfig, MomentumPredictor
from hybrid_predict.functional import correct, init, predict, verify

SMALL = 1e-4
"""A learning rate that is far too small."""

LIBRARIES = ("numpy", pytest.param("jax", marks=pytest.mark.slow))


def config(total: int = 240, **settings: Any) -> HybridConfig:
    settings = {"speedup": "auto", "max_overhead": 1e9, **settings}
    return HybridConfig(total_steps=total, kinds=KINDS, **settings)


@pytest.fixture
def tools(library: str) -> Any:
    """How arrays are loaded and functions compiled."""
    if library == "numpy":
        yield {}
        return
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield {"load": jax.numpy.asarray, "jit": jax.jit}


CASES: dict[str, dict[str, Any]] = {
    "all kinds": {},
    "not corrected": {"updates": {}},
    "hidden alone": {"predictors": {"hidden": "momentum"}},
    "not gated": {"predictors": {"vector": MomentumPredictor(gated=False), "hidden": "fitted"}},
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", CASES)
def test_small_rates_are_sped_up_as_in_the_engine(
    case: str, tools: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional_loops, "RATE", SMALL)
    settings = config(**CASES[case])
    ours, theirs = in_functions(settings, **tools), in_the_engine(settings)
    assert ours.predicted == theirs.predicted
    assert max(ours.predicted) > 1
    assert ours.steps == theirs.steps == settings.total_steps
    np.testing.assert_allclose([float(x) for x in ours.evidence], theirs.evidence, rtol=1e-9)
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_undone_counts_as_in_the_engine(
    tools: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional_loops, "RATE", SMALL)
    settings = config(400)
    full = in_the_engine(settings).predicted
    spoiled = [k for k, count in enumerate(full) if count][3]
    ours, theirs = (
        in_functions(settings, spoiled=spoiled, **tools),
        in_the_engine(settings, spoiled),
    )
    assert ours.undone == theirs.undone == full[spoiled] > 0
    assert ours.predicted == theirs.predicted != full
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], wanted, rtol=0, atol=1e-9)


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


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_run_resumes_from_its_state(tools: dict[str, Any]) -> None:
    settings, load = config(), tools.get("load", np.asarray)
    call = tools.get("jit", lambda function: function)(partial(step, settings=settings))

    def trained(state: Any, w: Any, until: int) -> Any:
        while state.clock.steps < until:
            state, w = call(state, w, *map(load, batch(int(state.clock.full_steps))))
        return state, w

    w = {name: load(x) for name, x in weights().items()}
    halfway = trained(init(w, settings), w, settings.total_steps // 2)
    assert halfway[0].clock.full_steps < halfway[0].clock.steps
    whole = trained(*halfway, settings.total_steps)
    resumed = trained(*pickle.loads(pickle.dumps(halfway)), settings.total_steps)
    assert int(whole[0].clock.full_steps) == int(resumed[0].clock.full_steps)
    for name, wanted in whole[1].items():
        np.testing.assert_array_equal(resumed[1][name], wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_failed_test_leads_back_to_no_predicted_steps(tools: dict[str, Any]) -> None:
    settings, load = config(), tools.get("load", np.asarray)
    call = tools.get("jit", lambda function: function)(partial(step, settings=settings))
    w = {name: load(x) for name, x in weights().items()}
    state = init(w, settings)
    while state.clock.full_steps < 30:  # no window closes in the next step
        state, w = call(state, w, *map(load, batch(int(state.clock.full_steps))))
    lost = state.evidence._replace(wealth=load(np.asarray(1e9)))
    paces = {
        kind: pace._replace(advance=load(np.asarray(2.0)))
        for kind, pace in state.pacing.paces.items()
    }
    state = state._replace(
        evidence=lost, pacing=state.pacing._replace(paces=paces, credit=load(np.asarray(2.0)))
    )
    state, w = call(state, w, *map(load, batch(30)))
    assert state.clock.steps - state.clock.full_steps >= 2
    assert float(state.evidence.wealth) == float(state.evidence.ended) == 0.0
    assert not any(float(pace.advance) for pace in state.pacing.paces.values())


@pytest.mark.parametrize(("made", "given"), [("auto", 1.5), (1.5, "auto")])
def test_a_state_of_another_speedup_is_refused(made: Any, given: Any) -> None:
    own = {"predictors": {"hidden": "fitted"}}
    state = init(weights(), config(speedup=made, **own))
    with pytest.raises(ConfigError, match=r"^state: .*speedup.*Give init"):
        predict(state, weights(), SMALL, config=config(speedup=given, **own))
