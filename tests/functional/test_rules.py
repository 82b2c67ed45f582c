"""The schedule of a run in 32 bits is that of plain numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hybrid_predict import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional import init, predict
from hybrid_predict.functional.initial import MOST_STEPS
from hybrid_predict.rules.schedule import due, schedule

WEIGHTS = {"a": np.ones((3, 2))}
SETTINGS: list[dict[str, Any]] = [
    *({"speedup": s} for s in (1.001, 1.5, 1.9, 2, 3.7, 1000)),
    *({"full_steps": f, "predict_steps": p} for f, p in ((2, 1), (3, 7), (1, 2**33), (2**40, 1))),
]


def positions(total: int) -> list[int]:
    """All positions of a short run, some of a long one."""
    if total < 100:
        return list(range(total + 1))
    drawn = [random.Random(total).randrange(total) for _ in range(20)]
    return [*range(5), *drawn, *range(total - 5, total + 1)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("total", [1, 60, 150, 2**30 + 1, MOST_STEPS])
def test_runs_of_any_length_are_planned_in_32_bits(total: int, setting: dict[str, Any]) -> None:
    momentum = {"hidden": "momentum"}
    config = HybridConfig(total_steps=total, warmup_steps=7, predictors=momentum, **setting)
    plain, arrays = schedule(config, 2 * 20), init(WEIGHTS, config).schedule
    assert {x.dtype for x in arrays} == {np.dtype(np.int32)}
    with np.errstate(over="ignore"):
        for step in positions(plain.total):
            assert int(due(arrays, np.asarray(step, np.int32))) == due(plain, step)


def test_a_run_that_is_too_long_is_refused() -> None:
    config = HybridConfig(total_steps=MOST_STEPS)
    moved, _ = predict(init(WEIGHTS, config), WEIGHTS, 0.1, config=config)
    np.testing.assert_array_equal(moved["a"], WEIGHTS["a"])
    with pytest.raises(ConfigError, match=f"total_steps: expected at most {MOST_STEPS} steps"):
        init(WEIGHTS, HybridConfig(total_steps=MOST_STEPS + 1))
