"""What may be given, what is refused, and what a call leaves alone."""

from __future__ import annotations

import subprocess
import sys
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
from hybrid_predict.functional import correct, init, predict, transitions, verify

ROOT = Path(__file__).parents[2]
CONFIG = HybridConfig(speedup=1, kinds=KINDS, total_steps=90)


def test_neither_library_needs_torch() -> None:
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
    "integers": ({"a": np.zeros(2, int)}, "floating-point array"),
    "torch": ({"a": torch.zeros(2)}, "NumPy or all of JAX, got 'Tensor of torch.*HybridEngine"),
    "nested": ({"a": {"b": np.zeros(2)}}, r"\['a'\]: expected a floating-point array.*paths"),
}


@pytest.mark.parametrize(("given", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_computed_with_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        init(given, CONFIG)


def test_kinds_are_told_by_shapes_and_patterns() -> None:
    predictors = dict.fromkeys(("hidden", "head", "vector"), "momentum")
    state = init(weights(), HybridConfig(kinds=KINDS, total_steps=90, predictors=predictors))
    found = {plan.name: plan.kind for plan in state.plans.arrays}
    assert {name for name, kind in found.items() if kind == "hidden"} == {"0.weight", "2.weight"}
    assert found["4.weight"] == "head" and found["4.bias"] == "vector"
    for patterns in ({}, {"*.wieght": "head"}):
        with pytest.raises(ConfigError, match=r"kinds: .*write kinds=\{'4.weight': 'head'\}"):
            init(weights(), HybridConfig(total_steps=90, kinds=patterns))
    alone = init({"only": np.zeros((2, 2))}, HybridConfig(total_steps=90))
    assert alone.plans.arrays[0].kind == "hidden"


class OwnUpdate(SpectralUpdate):
    """Its methods are about tensors."""


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "shadow": ({"shadow": True}, "shadow"),
    "no length": ({"total_steps": None}, "total_steps"),
    "own update": ({"updates": {"hidden": OwnUpdate()}}, "updates: .*HybridEngine"),
    "16 bits": ({"history_dtype": "bfloat16"}, "history_dtype: expected 'float32'"),
}


@pytest.mark.parametrize(("settings", "argument"), WRONG.values(), ids=WRONG)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument}"):
        init(weights(), HybridConfig(**{"kinds": KINDS, "total_steps": 90, **settings}))


WRONG_CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no state": (predict, {"state": None}, "state: .*Call init first"),
    "a negative rate": (predict, {"learning_rate": -0.1}, "learning_rate: expected a number of"),
    "no gradients": (verify, {"gradients": {}}, r"gradients\['0.weight'\].*got 'nothing'"),
    "turned gradients": (
        correct,
        {"gradients": {n: x.T for n, x in weights().items()}},
        r"gradients\['0.weight'\]: expected an array of the shape \(10, 6\).*\(6, 10\)",
    ),
    "no decay": (correct, {"weight_decay": {"0.weight": 0.1}}, "weight_decay: .*2.weight"),
}


@pytest.mark.parametrize(("call", "changes", "words"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_what_a_call_cannot_use_is_refused_by_name(
    call: Any, changes: dict[str, Any], words: str
) -> None:
    given = dict.fromkeys(("gradients", "weights", "before", "after"), weights())
    given |= {"state": init(weights(), CONFIG), "learning_rate": 0.1}
    taken = signature(call).parameters
    with pytest.raises(ConfigError, match=f"^{words}"):
        call(**{name: x for name, x in (given | changes).items() if name in taken})


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
            w, state = predict(state, w, rate)
            predicted += state.predicted
            gradients = {name: jax.numpy.cos(x) for name, x in w.items()}
            _, state = verify(state, gradients, 1.0)
            after = {name: x - rate * gradients[name] for name, x in w.items()}
            w, state = correct(state, gradients, w, after, rate)
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
    first = correct(state, gradients, w, after, 0.01)
    again = correct(state, gradients, w, after, 0.01)
    assert all(np.array_equal(w[name], copies[name]) for name in w)
    assert all(np.array_equal(first[0][name], again[0][name]) for name in w)
    assert state.clock.steps == 0 and first[1].clock.steps == 1
    assert state.policy.limits.norms[0].count == 0


def test_matrices_may_have_their_outputs_last() -> None:
    gradients, w, after = update(0.01)
    found = []
    for last in (False, True):
        given = [{n: x.T if last else x for n, x in each.items()} for each in (gradients, w, after)]
        state = init(given[1], CONFIG, outputs_last=last)
        for _ in range(2):
            new, state = correct(state, *given, 0.01)
        found.append({n: x.T if last else x for n, x in new.items()})
    for name in w:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-12)
        corrected = name in ("0.weight", "2.weight")
        assert np.array_equal(found[0][name], after[name]) != corrected
