"""Packages built on Lightning that users have; each test is skipped where its package is not."""

from typing import Any

import pytest

from hybrid_predict import HybridPredict, MomentumPredictor


@pytest.fixture
def callback() -> HybridPredict:
    """What a user writes, but for runs too short to show skill and layers so small that correcting
    them costs much."""
    predictors = {"hidden": MomentumPredictor(gated=False)}
    return HybridPredict(speedup=1.5, max_overhead=1e3, predictors=predictors)


@pytest.fixture
def quiet() -> dict[str, Any]:
    """What every Trainer is given."""
    return {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
