"""Direction and decoupled weight decay of optax optimizers are found out, or have to be said."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from functional_loops import KINDS, batch, loss_and_gradients, weights

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.errors import ConfigError

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
adapter = pytest.importorskip("hybrid_predict.integrations.optax")
from hybrid_predict.integrations.optax_probe import find_decay  # noqa: E402

PARAMS = {"b": np.ones(32, np.float32), "s": np.float32(1.0), "w": np.ones((8, 32), np.float32)}
RATES = [2.0**-k for k in range(10, 20)]


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


def labels(params: Any) -> Any:
    return jax.tree.map(lambda x: "with" if x.ndim > 1 else "without", params)


def after(decay: float, then: Any) -> Any:
    """Decay that is added to the gradient."""
    return lambda rate: optax.chain(optax.add_decayed_weights(decay), then(rate))


def labelled(rate: Any) -> Any:
    each = {"with": optax.adamw(rate, weight_decay=0.1), "without": optax.sgd(rate)}
    return optax.multi_transform(each, labels)


def refuses(*_: Any) -> Any:
    raise RuntimeError("no")


FOUND: dict[str, tuple[Any, list[float]]] = {
    "adam": (optax.adam, [0, 0, 0]),
    "adamw, as it is": (optax.adamw, [1e-4] * 3),
    "adamw": (partial(optax.adamw, weight_decay=0.0123), [0.0123] * 3),
    "masked": (partial(optax.adamw, weight_decay=0.01, mask=matrices), [0, 0, 0.01]),
    "labelled": (labelled, [0, 0, 0.1]),
    "clipped": (
        lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate)), [1e-4] * 3
    ),
    "added to the gradient, without momentum": (after(0.01, optax.sgd), [0.01] * 3),
}  # fmt: skip

UNKNOWN: dict[str, Any] = {
    "relative": optax.lamb,
    "in units of the weights": optax.adafactor,
    "added to the gradient of adam": after(0.01, optax.adam),
    "apart from the rate": lambda r: optax.chain(optax.sgd(r), optax.add_decayed_weights(-0.001)),
    "growth": lambda r: optax.adamw(r, weight_decay=-0.1),
    "cannot be tried": lambda _: optax.GradientTransformation(lambda params: None, refuses),
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("optimizer", "wanted"), FOUND.values(), ids=FOUND)
def test_decay_is_found(optimizer: Any, wanted: list[float], sign: float) -> None:
    assert find_decay(optimizer, lambda k: sign * RATES[k], PARAMS) == wanted


@pytest.mark.parametrize("optimizer", UNKNOWN.values(), ids=UNKNOWN)
def test_what_else_depends_on_the_weights_has_to_be_said(optimizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"weight_decay: expected a number.*Say the decoupled"):
        find_decay(optimizer, RATES.__getitem__, PARAMS)


def test_rates_of_zero_at_the_start_are_passed_over() -> None:
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 1000)
    optimizer = optax.adamw(rate, weight_decay=0.01)
    assert find_decay(lambda _: optimizer, rate, PARAMS) == [0.01] * 3
    with pytest.raises(ConfigError, match="a learning rate of 0 in the first 64 updates"):
        find_decay(optax.adamw, lambda _: 0.0, PARAMS)


def test_schedules_get_the_arrays_that_optax_counts_with() -> None:
    def rate(count: Any) -> Any:
        return 1e-3 * (1.0 - count.astype("float32") / 1000)

    assert find_decay(partial(optax.adamw, weight_decay=0.1), rate, PARAMS) == [0.1] * 3


@pytest.mark.parametrize("case", ["masked", "labelled"])
@pytest.mark.slow
def test_updates_have_the_decay_that_was_found(case: str) -> None:
    def loss(params: Any) -> Any:
        return ((params["w"] @ params["b"]) ** 2).mean() + params["s"] ** 2

    optimizer, decays = FOUND[case]
    by_name = dict(zip(sorted(PARAMS), decays, strict=True))
    config = HybridConfig(speedup=1, total_steps=9, max_overhead=1e9)
    moved = {}
    for said in (None, by_name):
        given = jax.value_and_grad(loss), optimizer, 0.1, config
        init, step = adapter.train_step(*given, weight_decay=said)
        moved[said is None] = step(init(PARAMS))[0].params
        made = adapter.corrected(optimizer(0.1), 0.1, config, weight_decay=said)
        updates, _ = jax.jit(made.update)(jax.grad(loss)(PARAMS), made.init(PARAMS), PARAMS)
        np.testing.assert_allclose(PARAMS["w"] + updates["w"], moved[said is None]["w"], rtol=1e-6)
    np.testing.assert_array_equal(moved[True]["w"], moved[False]["w"])


def test_before_the_first_step_it_is_said_that_decay_is_missing() -> None:
    config = HybridConfig(speedup=1, total_steps=9)
    given = jax.value_and_grad(lambda params: 0.0), optax.lamb, 0.1, config
    for said in (None, 0.0):
        inits = (
            adapter.corrected(optax.lamb(0.1), 0.1, config, weight_decay=said).init,
            adapter.train_step(*given, weight_decay=said)[0],
        )
        for init in inits:
            missing = pytest.raises(ConfigError, match="weight_decay")
            with missing if said is None else nullcontext():
                init(PARAMS)


def config(**settings: Any) -> HybridConfig:
    return HybridConfig(kinds=KINDS, max_overhead=1e9, **settings)


def loss(w: dict[str, Any], x: Any, y: Any, sign: float = 1.0) -> Any:
    return sign * loss_and_gradients(w, x, y)[0]


def momentum(rate: Any, flip_sign: bool = True) -> Any:
    """An optimizer that goes along gradients if the sign is not flipped."""
    return optax.chain(optax.trace(0.9), optax.scale_by_learning_rate(rate, flip_sign=flip_sign))


def transformed(optimizer: Any, rate: Any, sign: float = 1.0, correct: bool = True) -> Any:
    if correct:
        settings = config(speedup=1, total_steps=99)
        optimizer = adapter.corrected(optimizer, rate, settings, outputs_last=False)

    @jax.jit
    def step(w: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(w, x, y, sign), state, w)
        return optax.apply_updates(w, updates), state

    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    state = optimizer.init(w)
    for k in range(12):
        w, state = step(w, state, *batch(k))
    return w


ASCENTS = {
    "a custom update": (partial(momentum, flip_sign=False), 0.01),
    "a negative schedule": (momentum, lambda k: -0.01 / (k + 1)),
}


@pytest.mark.parametrize(("make", "rate"), ASCENTS.values(), ids=ASCENTS)
def test_a_transformation_follows_the_direction_of_the_optimizer(
    make: Any, rate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    positive = (lambda k: -rate(k)) if callable(rate) else rate
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        up = transformed(make(rate), rate, -1.0)
        down = transformed(momentum(positive), positive)
    assert not caplog.records
    for key, wanted in down.items():
        np.testing.assert_array_equal(up[key], wanted)


def test_a_transformation_of_unknown_direction_is_left_alone_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    masks = {name: np.ones(x.shape) for name, x in weights().items()}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return {name: -0.01 * masks[name] * g for name, g in updates.items()}, state

    of_whole_leaves = optax.GradientTransformation(lambda params: (), update)
    with caplog.at_level(logging.WARNING, "hybrid_predict"):
        ours = transformed(of_whole_leaves, 0.01)
    assert "goes against gradients or along" in caplog.text
    plain = transformed(of_whole_leaves, 0.01, correct=False)
    for key, wanted in plain.items():
        np.testing.assert_allclose(ours[key], wanted, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_train_step_follows_the_direction_of_the_optimizer() -> None:
    ungated = {"hidden": MomentumPredictor(gated=False)}
    settings, ends = config(total_steps=40, predictors=ungated, watch_loss=False), []
    for sign in (1.0, -1.0):
        init, step = adapter.train_step(
            jax.value_and_grad(partial(loss, sign=sign)),
            partial(momentum, flip_sign=sign > 0), 0.01, settings, outputs_last=False,
        )  # fmt: skip
        state, predicted = init(weights()), 0
        for k in range(24):
            state, record = step(state, *batch(k))
            predicted += int(record.predicted)
        assert predicted > 0
        ends.append(state.params)
    for key, wanted in ends[0].items():
        np.testing.assert_array_equal(ends[1][key], wanted)
