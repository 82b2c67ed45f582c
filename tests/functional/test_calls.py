"""What may be given, what a call computes with, and what it says about that."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from functional_loops import KINDS, weights

from hybrid_predict import HybridConfig, MomentumPredictor, SpectralUpdate
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.functional import (
    correct,
    init,
    kinds,
    predict,
    select_backend,
    transitions,
    verify,
)

ROOT = Path(__file__).parents[2]
CONFIG = HybridConfig(speedup=1, kinds=KINDS)


def test_arrays_are_computed_with_where_they_are() -> None:
    assert select_backend(weights()) == ("numpy", "cpu", "the arrays are there")
    jax = pytest.importorskip("jax")
    assert select_backend({"a": jax.numpy.zeros(2)}).library == "jax"


def test_new_arrays_are_best_made_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert select_backend()[:2] == ("jax", "tpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert select_backend() == ("numpy", "cpu", "no accelerator was found")


def test_neither_needs_torch() -> None:
    """JAX users need not install torch; the example of the documentation trains without it."""
    page = (ROOT / "docs" / "functional.md").read_text(encoding="utf-8")
    blocks = [
        "import sys",
        "sys.modules['torch'] = None",
        page.split("```python\n")[1].split("```")[0],
    ]
    if find_spec("optax"):
        blocks.append("import hybrid_predict.integrations.optax")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=ROOT, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


BAD: dict[str, tuple[Any, str]] = {
    "no mapping": ([np.zeros(2)], "a mapping of names"),
    "integers": ({"a": np.zeros(2, int)}, "real floating-point"),
    "complex": ({"a": np.zeros(2, complex)}, "real floating-point"),
    "torch": ({"a": torch.zeros(2)}, "arrays of NumPy or JAX, got 'torch.Tensor'.*HybridEngine"),
    "nested": ({"a": {"b": np.zeros(2)}}, r"\['a'\]: expected an array"),
    "numbers as names": ({1: np.zeros(2)}, "names that are strings"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_computed_with_is_refused(given: Any, words: str) -> None:
    for call in (select_backend, partial(init, config=CONFIG)):
        with pytest.raises(ConfigError, match=words):
            call(given)


def test_kinds_are_told_by_shapes_and_patterns() -> None:
    found = kinds(weights(), CONFIG)
    assert {name for name, kind in found.items() if kind == "hidden"} == {"0.weight", "2.weight"}
    assert found["4.weight"] == "head" and found["4.bias"] == "vector"
    with pytest.raises(ConfigError, match=r"kinds: .*write kinds=\{'4.weight': 'head'\}"):
        init(weights(), HybridConfig(speedup=1))
    with pytest.raises(ConfigError, match="kinds: expected patterns that match a name"):
        init(weights(), HybridConfig(speedup=1, kinds={"*.wieght": "head"}))
    assert kinds({"only": np.zeros((2, 2))}, HybridConfig()) == {"only": "hidden"}


class OwnPredictor(AbstractPredictor):
    """Whatever it does, arrays do not know it."""

    init = observe = forecast = None  # type: ignore[assignment]


class OwnUpdate(SpectralUpdate):
    """Its methods are about tensors."""


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "shadow": ({"shadow": True}, "shadow"),
    "no length": ({"speedup": 1.5}, "total_steps"),
    "own predictor": (
        {"predictors": {"hidden": OwnPredictor()}, "total_steps": 9},
        "predictors: .*HybridEngine",
    ),
    "own update": ({"updates": {"hidden": OwnUpdate()}, "speedup": 1}, "updates: .*HybridEngine"),
    "a long average": (
        {"updates": {"hidden": SpectralUpdate(decay=0.99)}, "history_dtype": "bfloat16"},
        "history_dtype: expected 'float32'",
    ),
}


@pytest.mark.parametrize(("settings", "argument"), WRONG.values(), ids=WRONG)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}"):
        init(weights(), HybridConfig(kinds=KINDS, **settings))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("config", {}), ("momentum", 1.0), ("outputs_last", 1), ("step_operations", 0.0)],
)
def test_arguments_of_init_are_checked(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}"):
        init(weights(), **{"config": CONFIG, argument: value})


def alike(arrays: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(("before", "after", "gradients"), arrays)


OTHERS = {"2.weight": np.ones((3, 3)), "4.weight": np.ones(3)}
WRONG_CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no state": (predict, {"state": None}, "state: .*Call init first"),
    "another configuration": (predict, {"config": CONFIG}, "config: expected that of init"),
    "rates in a row": (correct, {"learning_rates": np.ones(3)}, "learning_rates: expected a num"),
    "a rate in words": (predict, {"learning_rates": "0.1"}, "learning_rates: expected a number"),
    "losses": (verify, {"loss": np.ones(3)}, r"loss: expected a number .*\(3,\)"),
    "no gradients": (verify, {"gradients": {}}, "gradients: expected a mapping"),
    "integers": (correct, {"after": {"2.bias": np.zeros(8, int)}}, r"after\['2.bias'\]"),
    "turned gradients": (
        correct,
        {"gradients": {n: x.T for n, x in weights().items()}},
        r"gradients\['0.weight'\]: expected the shape \(10, 6\).*\(6, 10\)",
    ),
    "other weights": (correct, alike(OTHERS), r"before\['0.weight'\].*Give all calls"),
    "other operations": (correct, {"step_operations": 1e9}, "step_operations: expected that of"),
    "another layout": (correct, {"outputs_last": True}, "outputs_last: expected that of init"),
}


@pytest.mark.parametrize(("call", "changes", "words"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_what_a_call_cannot_use_is_refused_by_name(
    call: Any, changes: dict[str, Any], words: str
) -> None:
    settings = HybridConfig(kinds=KINDS, total_steps=90) if call is predict else CONFIG
    given = dict.fromkeys(("gradients", "weights", "before", "after"), weights())
    given |= {"state": init(weights(), settings), "config": settings, "learning_rates": 0.1}
    taken = signature(call).parameters
    with pytest.raises(ConfigError, match=f"^{words}"):
        call(**{name: x for name, x in (given | changes).items() if name in taken})


@pytest.mark.parametrize("argument", ["gradients", "after", "learning_rates", "weight_decay"])
def test_a_missing_name_is_refused(argument: str) -> None:
    w = weights()
    one = dict.fromkeys(w, 0.1)
    given = {"gradients": w, "after": w, "learning_rates": one, "weight_decay": one}
    given[argument] = {name: x for name, x in given[argument].items() if name != "2.weight"}
    state = init(w, CONFIG)
    with pytest.raises(ConfigError, match=f"^{argument}.*2.weight"):
        correct(
            state, given["gradients"], w, given["after"], given["learning_rates"],
            config=CONFIG, weight_decay=given["weight_decay"],
        )  # fmt: skip


def test_a_state_of_another_library_is_refused() -> None:
    jax = pytest.importorskip("jax")
    state = init(weights(), CONFIG)
    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    with pytest.raises(ConfigError, match="before: expected arrays of numpy, got 'jax'"):
        correct(state, w, w, w, 0.1, config=CONFIG)
    with pytest.raises(ConfigError, match="arrays of one library"):
        correct(state, w, weights(), weights(), 0.1, config=CONFIG)


def test_calls_inside_jit_are_refused() -> None:
    jax = pytest.importorskip("jax")
    call = jax.jit(partial(init, config=CONFIG))
    with pytest.raises(ConfigError, match=r"expected an array with values.*outside of jax\.jit"):
        call({name: jax.numpy.asarray(array) for name, array in weights().items()})


def test_jax_compiles_a_full_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    predictors = {"hidden": MomentumPredictor(gated=False)}
    settings = HybridConfig(total_steps=90, kinds=KINDS, predictors=predictors)
    traced, advanced = [], transitions._advanced

    def counted(plans: Any, plan: Any, *given: Any) -> Any:
        traced.append(plan.name)
        return advanced(plans, plan, *given)

    monkeypatch.setattr(transitions, "_advanced", counted)
    with jax.enable_x64(True):
        w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
        state, predicted = init(w, settings, momentum=0.123), 0  # that of no other test
        for k in range(45):
            rate = 0.01 / (k + 1)
            w, state = predict(state, w, rate, config=settings)
            predicted += state.predicted
            gradients = {name: jax.numpy.cos(x) for name, x in w.items()}
            _, state = verify(state, gradients, 1.0)
            after = {name: x - rate * gradients[name] for name, x in w.items()}
            w, state = correct(state, gradients, w, after, rate, config=settings)
    assert predicted > 0 and state.clock.begun == 40
    assert traced == ["0.weight", "2.weight"]


def update(rate: float) -> tuple[dict[str, Any], ...]:
    """Gradients, and weights before and after an update by them."""
    w = weights()
    gradients = {name: np.cos(np.arange(x.size)).reshape(x.shape) for name, x in w.items()}
    return gradients, w, {name: x - rate * gradients[name] for name, x in w.items()}


def test_nothing_that_was_given_changes() -> None:
    gradients, w, after = update(0.01)
    state, copies = init(w, CONFIG), {name: x.copy() for name, x in w.items()}
    first = correct(state, gradients, w, after, 0.01, config=CONFIG)
    again = correct(state, gradients, w, after, 0.01, config=CONFIG)
    assert all(np.array_equal(w[name], copies[name]) for name in w)
    assert all(np.array_equal(first[0][name], again[0][name]) for name in w)
    assert state.clock.steps == 0 and first[1].clock.steps == 1
    assert state.policy.limits.norms[0].count == 0


def test_disabled_it_leaves_the_optimizer_s_weights() -> None:
    settings, (gradients, w, after) = HybridConfig(enabled=False, total_steps=9), update(0.1)
    found, state = correct(init(w, settings), gradients, w, after, 0.1, config=settings)
    assert all(np.array_equal(found[name], after[name]) for name in w)
    assert state.tensors == {}


def test_matrices_may_have_their_outputs_last() -> None:
    gradients, w, after = update(0.01)
    found = []
    for last in (False, True):
        given = [{n: x.T if last else x for n, x in each.items()} for each in (gradients, w, after)]
        state = init(given[1], CONFIG, outputs_last=last)
        for _ in range(2):
            new, state = correct(state, *given, 0.01, config=CONFIG, outputs_last=last)
        found.append({n: x.T if last else x for n, x in new.items()})
    for name in w:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-12)
        corrected = name in ("0.weight", "2.weight")
        assert np.array_equal(found[0][name], after[name]) != corrected


def test_steepness_is_measured_in_32_bits_where_weights_in_16_hide_the_movement() -> None:
    jax = pytest.importorskip("jax")
    w = {"a": jax.numpy.ones((4, 4), jax.numpy.bfloat16)}
    short = MomentumPredictor(coefficient=0.25, gated=False)
    config = HybridConfig(total_steps=30, warmup_steps=2, updates={}, predictors={"hidden": short})
    state, predicted = init(w, config), 0
    for k in range(12):
        moved, state = predict(state, w, 1.0, config=config)
        assert (moved["a"] == w["a"]).all()
        predicted += state.predicted
        _, state = verify(state, w)
        after = {"a": moved["a"] - (k % 2) * 2.0**-7}
        w, state = correct(state, moved, moved, after, 1.0, config=config)
    assert predicted > 0 and state.policy.evidence.verdicts > 0
