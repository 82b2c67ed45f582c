"""Corrected updates and train steps with optax: compiled, donated, with the engine's numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from functional_loops import DECAY, KINDS, RATE, Run, batch, in_the_engine, rate, same_runs, weights

from hybrid_predict import HybridConfig, MomentumPredictor
from hybrid_predict.errors import ConfigError

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
adapter = pytest.importorskip("hybrid_predict.integrations.optax")

UNGATED = {"hidden": MomentumPredictor(gated=False)}


def config(**settings: Any) -> HybridConfig:
    return HybridConfig(kinds=KINDS, max_overhead=1e9, **settings)


@pytest.fixture(autouse=True)
def in_64_bits() -> Any:
    with jax.enable_x64(True):
        yield


def loss(w: dict[str, Any], x: Any, y: Any, more: float = 0.0) -> Any:
    hidden = jax.numpy.tanh(x @ w["0.weight"].T + w["0.bias"])
    hidden = jax.numpy.tanh(hidden @ w["2.weight"].T + w["2.bias"])
    return ((hidden @ w["4.weight"].T + w["4.bias"] - y) ** 2).mean() + more


def schedule(total: int) -> Any:
    return lambda step: RATE * (0.55 + 0.45 * jax.numpy.cos(jax.numpy.pi * step / total))


def trained(
    settings: HybridConfig, spoiled: int | None = None, risen: float = np.inf
) -> tuple[list[Any], Run]:
    init, step = adapter.train_step(
        jax.value_and_grad(loss), partial(optax.adamw, weight_decay=DECAY),
        schedule(settings.total_steps), settings, weight_decay=DECAY, outputs_last=False,
    )  # fmt: skip
    state, records, steps = init(weights()), [], 0
    while steps < settings.total_steps:
        x, y = batch(len(records))
        x = x * np.nan if len(records) == spoiled else x
        old = state
        state, record = step(state, x, y, 1e6 if len(records) >= risen else 0.0)
        records.append(record)
        steps = record.steps
        assert old.hybrid.tensors["0.weight"].average.is_deleted() == record.stands
    undone = [record.stands for record in records].count(False)
    predicted = [record.predicted for record in records]
    return records, Run(state.params, steps, predicted, undone)


@pytest.mark.slow
def test_a_train_step_has_the_engine_s_numbers() -> None:
    settings = config(total_steps=60, predictors=UNGATED)
    records, run = trained(settings, risen=20)
    same_runs(run, in_the_engine(settings, risen=20))
    assert run.undone > 0
    assert sum(record.ticks for record in records) == 60 > len(records)


def test_a_train_step_undoes_what_cannot_stand() -> None:
    settings = config(total_steps=60, predictors=UNGATED)
    spoiled = [k for k, n in enumerate(in_the_engine(settings).predicted) if n][2]
    _, run = trained(settings, spoiled)
    same_runs(run, in_the_engine(settings, spoiled))
    assert run.undone == 1


def test_a_transformation_corrects_what_the_engine_corrects() -> None:
    total = 1000
    learning_rate = schedule(total)
    optimizer = adapter.corrected(
        optax.adamw(learning_rate, weight_decay=DECAY), learning_rate,
        config(speedup=1), weight_decay=DECAY, outputs_last=False,
    )  # fmt: skip

    @jax.jit
    def step(w: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(w, x, y), state, w)
        return optax.apply_updates(w, updates), state

    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    state = optimizer.init(w)
    for k in range(40):
        w, state = step(w, state, *batch(k))
    theirs = in_the_engine(config(speedup=1, total_steps=total), stop=40)
    assert float(learning_rate(3)) == pytest.approx(rate(3, total))
    for name, wanted in theirs.weights.items():
        np.testing.assert_allclose(w[name], wanted, rtol=0, atol=1e-10)


def test_wrong_arguments_are_told() -> None:
    given: dict[str, Any] = {"learning_rate": 0.1, "config": config(total_steps=9)}
    given["weight_decay"] = 0.0
    with pytest.raises(ConfigError, match=r"^optimizer: .*optax\.adamw"):
        adapter.train_step(jax.value_and_grad(loss), optax.adamw(0.1), **given)
    with pytest.raises(ConfigError, match=r"^speedup: expected 1"):
        adapter.corrected(optax.sgd(0.1), **given)
    optimizer = adapter.corrected(optax.sgd(0.1), **{**given, "config": config(speedup=1)})
    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    with pytest.raises(ConfigError, match=r"^params"):
        optimizer.update(w, optimizer.init(w))


@pytest.mark.slow
def test_sharded_parameters_have_the_numbers_of_whole_ones() -> None:
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    script = Path(__file__).parents[1] / "helpers" / "sharded_loop.py"
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["off"] < 1e-12
    assert found["predicted"] == [10, 10]
    assert found["kept"]


def masked(rate: Any) -> Any:
    return optax.adamw(rate, weight_decay=0.5, mask=lambda w: {n: x.ndim > 1 for n, x in w.items()})


def test_decays_may_differ_by_name() -> None:
    decays = {name: 0.5 * (x.ndim > 1) for name, x in weights().items()}
    settings = config(speedup=1, total_steps=60)
    init, step = adapter.train_step(
        jax.value_and_grad(loss), masked, 0.1, settings, weight_decay=decays, outputs_last=False
    )
    transformed = adapter.corrected(
        masked(0.1), 0.1, settings, weight_decay=decays, outputs_last=False
    )
    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    updates, _ = transformed.update(jax.grad(loss)(w, *batch(0)), transformed.init(w), w)
    stepped = step(init(w), *batch(0))[0].params
    for name, wanted in optax.apply_updates(w, updates).items():
        np.testing.assert_allclose(stepped[name], wanted, rtol=0, atol=1e-12)


def test_a_transformation_corrects_to_the_last_step() -> None:
    settings = config(speedup=1, total_steps=8, cooldown_steps=4)
    optimizer = adapter.corrected(optax.sgd(0.1), 0.1, settings, weight_decay=0.0)
    w = {name: jax.numpy.asarray(array) for name, array in weights().items()}
    state = optimizer.init(w)
    corrected = []
    for k in range(8):
        gradients = jax.grad(loss)(w, *batch(k))
        updates, state = optimizer.update(gradients, state, w)
        own = -0.1 * gradients["2.weight"]
        corrected.append(not np.allclose(updates["2.weight"], own, rtol=1e-6, atol=1e-12))
        w = optax.apply_updates(w, updates)
    assert corrected == [True] * 8
