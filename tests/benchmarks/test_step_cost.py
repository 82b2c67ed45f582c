"""What a forecast costs beside the optimizer's update: rows of one group stand side by side.

A row is the time of one block of full steps on preset gradients, without forward and backward.
"""

import pytest
import torch

from benchmarks.step_cost import LENGTH, ROUNDS, SIZES, Steps, buffers
from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.predictors import PREDICTORS

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.parametrize(
        "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])]
    ),
    pytest.mark.parametrize("size", SIZES),
]


def group(size, device):
    return f"{LENGTH} full steps, {size} parameters, {device}"


def test_fused_adamw(benchmark, size, device):
    benchmark.group = group(size, device)
    steps = Steps("momentum", size, device)
    benchmark.pedantic(
        steps.seconds, kwargs={"forecasts": False}, rounds=ROUNDS[size], warmup_rounds=1
    )
    benchmark.extra_info["parameters"] = steps.parameters


@pytest.mark.parametrize("history", HISTORY_DTYPES)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_fused_adamw_with_forecasts(benchmark, predictor, history, size, device):
    benchmark.group = group(size, device)
    steps = Steps(predictor, size, device, history)
    plain, hybrid = [], []
    benchmark.pedantic(
        lambda: hybrid.append(steps.seconds()),
        setup=lambda: plain.append(steps.seconds(forecasts=False)),
        rounds=ROUNDS[size],
    )
    benchmark.extra_info.update(steps.summary(plain, hybrid))
    # Base weights, the optimizer's two moments, and what the method card documents, in 32 bits.
    documented = 4 * steps.parameters * (1 + 2 + buffers(predictor, history))
    assert documented <= steps.bytes <= documented + 64 * steps.tensors
