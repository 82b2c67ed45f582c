"""Corrections stay within ``max_overhead`` of a full step whose operations the caller states."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest
from functional_loops import KINDS, in_functions, in_the_engine, same_runs, weights

from hybrid_predict import (
    ConfigError,
    HybridConfig,
    MomentumPredictor,
    SpectralUpdate,
    WhitenedUpdate,
)
from hybrid_predict.functional import correct, init, predict, verify
from hybrid_predict.rules import budget

UNGATED = {"hidden": MomentumPredictor(gated=False)}


@pytest.fixture(autouse=True)
def every_operation_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SMALLEST_STEP", 0.0)


@pytest.mark.parametrize(("limit", "block"), [(0.0, 1), (0.3, 2), (0.6, 4), (3.0, None)])
def test_as_many_rows_are_treated_together_as_in_the_engine(limit: float, block: int) -> None:
    settings = HybridConfig(total_steps=40, kinds=KINDS, max_overhead=limit, predictors=UNGATED)
    theirs = in_the_engine(settings)
    assert theirs.operations and theirs.block == block
    same_runs(in_functions(settings, step_operations=theirs.operations), theirs)


@pytest.mark.parametrize(
    ("limit", "update", "levels"),
    [
        (3.0, SpectralUpdate(), []),
        (0.3, SpectralUpdate(), ["INFO"]),
        (0.3, WhitenedUpdate(), ["INFO"]),
    ],
    ids=["in full", "limited", "not whitened"],
)
def test_limits_are_told_as_in_the_engine(
    limit: float, update: SpectralUpdate, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = HybridConfig(
        speedup=1, total_steps=40, kinds=KINDS, max_overhead=limit, updates={"hidden": update}
    )
    with caplog.at_level(logging.INFO):
        theirs = in_the_engine(settings, stop=2)
        said = [text.partition(": ")[2] for text in caplog.messages if "max_overhead" in text]
        caplog.clear()
        init(weights(), settings, step_operations=theirs.operations)
    assert [text.lower() for text in caplog.messages] == said
    assert [record.levelname for record in caplog.records] == levels


def wide() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {"hidden": generator.normal(size=(48, 48)), "head": generator.normal(size=(2, 48))}


@pytest.mark.parametrize(
    ("limit", "words"),
    [(0.0, "max_overhead=0 allows no corrected updates"), (1e-9, "batches are too small")],
)
@pytest.mark.parametrize(
    ("settings", "groups", "warned"),
    [
        ({"total_steps": 90}, set(), True),
        ({"total_steps": 90, "predictors": UNGATED}, {"hidden"}, False),
        ({"speedup": 1}, {"hidden"}, False),
    ],
    ids=["gated", "not gated", "corrected only"],
)
def test_weak_corrections_make_up_for_no_predicted_steps(
    settings: dict[str, Any], groups: set[str], warned: bool, limit: float, words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    w, config = wide(), HybridConfig(kinds={"head": "head"}, max_overhead=limit, **settings)
    with caplog.at_level(logging.INFO):
        state = init(w, config, step_operations=1e6)
    assert state.groups.keys() == groups
    assert ("no predicted steps" in caplog.text, words in caplog.text) == (warned, warned)
    assert ("rows one by one" in caplog.text) is bool(groups)
    after = {name: 0.99 * x for name, x in w.items()}
    new, _ = correct(state, w, w, after, 0.1, config=config, step_operations=1e6)
    assert np.array_equal(new["hidden"], after["hidden"]) is not bool(groups)


@pytest.mark.parametrize("jitted", [False, True], ids=["called", "jitted"])
@pytest.mark.parametrize(("told", "later"), [(1e7, None), (None, 1e7), (1e7, 1e6)])
def test_corrections_are_limited_as_init_was_told(
    told: float | None, later: float | None, jitted: bool
) -> None:
    w: Any = {"hidden": np.random.default_rng(0).normal(size=(64, 64))}
    config = HybridConfig(speedup=1)
    state = init(w, config, step_operations=told)
    assert (state.blocks.shape[0] > 1) is (told is not None)
    call = partial(correct, learning_rates=0.1, config=config)
    now, wrong = (partial(call, step_operations=number) for number in (told, later))
    if jitted:
        jax = pytest.importorskip("jax")
        w, state = jax.tree.map(jax.numpy.asarray, (w, state))
        now, wrong = jax.jit(now), jax.jit(wrong)
    now(state, w, w, w)
    with pytest.raises(ConfigError, match=r"^step_operations: .*that init was given"):
        wrong(state, w, w, w)


@pytest.mark.parametrize("value", [-5.0, "x"])
def test_correct_checks_the_operations_it_is_told(value: Any) -> None:
    w = {"hidden": np.ones((4, 4))}
    state = init(w, config := HybridConfig(speedup=1))
    with pytest.raises(ConfigError, match=r"^step_operations: expected a finite number"):
        correct(state, w, w, w, 0.1, config=config, step_operations=value)


@pytest.mark.parametrize("speedup", [1.5, "auto"])
def test_there_may_be_more_weights_than_32_bits_count(speedup: Any) -> None:
    jax = pytest.importorskip("jax")
    config = HybridConfig(speedup=speedup, total_steps=90, kinds={"*": "hidden"})

    def step(w: Any) -> Any:
        moved, state = predict(init(w, config), w, 0.1, config=config)
        return correct(verify(state, w)[1], w, moved, moved, 0.1, config=config)

    like = {name: jax.ShapeDtypeStruct((2**15, 2**15), "float32") for name in "abc"}
    after, _ = jax.eval_shape(step, like)
    assert after == like
