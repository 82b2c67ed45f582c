"""The decoupled weight decay of optax optimizers is found out, or has to be said."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from hybrid_predict import ConfigError, HybridConfig

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


FOUND: dict[str, tuple[Any, list[float]]] = {
    "adam": (optax.adam, [0, 0, 0]),
    "sgd": (partial(optax.sgd, momentum=0.9), [0, 0, 0]),
    "adamw, as it is": (optax.adamw, [1e-4] * 3),
    "adamw": (partial(optax.adamw, weight_decay=0.0123), [0.0123] * 3),
    "lion": (partial(optax.lion, weight_decay=0.5), [0.5] * 3),
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
    "added to the gradient of momentum": after(0.01, partial(optax.sgd, momentum=0.9)),
    "added to the gradient of adam": after(0.01, optax.adam),
    "apart from the rate": lambda r: optax.chain(optax.sgd(r), optax.add_decayed_weights(-0.001)),
    "growth": lambda r: optax.adamw(r, weight_decay=-0.1),
}


@pytest.mark.parametrize("case", FOUND)
def test_decay_is_found(case: str) -> None:
    optimizer, wanted = FOUND[case]
    assert find_decay(optimizer, RATES.__getitem__, PARAMS) == wanted


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_else_depends_on_the_weights_has_to_be_said(case: str) -> None:
    with pytest.raises(ConfigError, match=r"weight_decay: expected a number.*Say the decoupled"):
        find_decay(UNKNOWN[case], RATES.__getitem__, PARAMS)


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


def test_an_optimizer_that_cannot_be_tried_is_left_alone() -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("no")

    optimizer = optax.GradientTransformation(lambda params: None, refuses)
    assert find_decay(lambda _: optimizer, RATES.__getitem__, PARAMS) == [0.0] * 3


def test_rates_may_be_negative() -> None:
    optimizer = partial(optax.adamw, weight_decay=0.01)
    assert find_decay(optimizer, lambda k: -RATES[k], PARAMS) == [0.01] * 3


def loss(params: Any) -> Any:
    return ((params["w"] @ params["b"]) ** 2).mean() + params["s"] ** 2


@pytest.mark.parametrize("case", ["adamw, as it is", "masked", "labelled"])
def test_updates_have_the_decay_that_was_found(case: str) -> None:
    optimizer, decays = FOUND[case]
    by_name = dict(zip(sorted(PARAMS), decays, strict=True))
    config = HybridConfig(speedup=1, total_steps=9, max_overhead=1e9)
    after_step = {}
    for said in (None, by_name):
        init, step = adapter.train_step(
            jax.value_and_grad(loss), optimizer, 0.1, config, weight_decay=said
        )
        after_step[said is None] = step(init(PARAMS))[0].params
        made = adapter.corrected(optimizer(0.1), 0.1, config, weight_decay=said)
        updates, _ = jax.jit(made.update)(jax.grad(loss)(PARAMS), made.init(PARAMS), PARAMS)
        np.testing.assert_allclose(
            PARAMS["w"] + updates["w"], after_step[said is None]["w"], rtol=1e-6
        )
    np.testing.assert_array_equal(after_step[True]["w"], after_step[False]["w"])


@pytest.mark.parametrize("make", ["train_step", "corrected"])
def test_before_the_first_step_it_is_said_that_decay_is_missing(make: str) -> None:
    config = HybridConfig(speedup=1, total_steps=9)
    for said in (None, 0.0):
        if make == "corrected":
            init = adapter.corrected(optax.lamb(0.1), 0.1, config, weight_decay=said).init
        else:
            given = jax.value_and_grad(loss), optax.lamb, 0.1, config
            init, _ = adapter.train_step(*given, weight_decay=said)
        if said is None:
            with pytest.raises(ConfigError, match="weight_decay"):
                init(PARAMS)
        else:
            init(PARAMS)
