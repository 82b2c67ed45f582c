"""Forecasts hold exactly the memory that docs/how_it_works.md and the method cards document."""

import pytest
import torch
from torch import nn

from benchmarks.step_cost import buffers, held
from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.predictors import PREDICTORS

OPTIMIZERS = {
    "sgd": (0, lambda ps: torch.optim.SGD(ps, lr=0.01)),
    "momentum": (1, lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9)),
    "adamw": (2, lambda ps: torch.optim.AdamW(ps, lr=0.01)),
}
"""Each with its parameter-sized buffers of state."""


def trained_engine(model, optimizer, predictor, history):
    """An engine in steady state."""
    inputs = torch.ones(8, 64, dtype=next(model.parameters()).dtype)
    config = HybridConfig(
        total_steps=1000, warmup_fraction=0.0, predictors={"hidden": predictor},
        history_dtype=history,
    )  # fmt: skip
    engine = HybridEngine(model, optimizer, config)
    for _ in range(4):
        engine.before_step()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = engine.after_step(loss)
    assert record.horizon > 0
    return engine


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("adamw", "float32"), ("adamw", "bfloat16"), ("momentum", "float32"), ("sgd", "float32")],
)
@pytest.mark.parametrize("history", HISTORY_DTYPES)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_forecasts_hold_the_documented_memory(predictor, history, name, dtype):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(getattr(torch, dtype))
    states, make = OPTIMIZERS[name]
    optimizer = make(model.parameters())
    found = held(trained_engine(model, optimizer, predictor, history), model, optimizer)
    trained = sum(p.numel() for p in model.parameters())
    forecast = 2 * 64 * 64  # the last layer is the head
    item, carry = (2, 1) if dtype == "bfloat16" else (4, 0)
    documented = (
        item * (1 + states) * trained + 4 * (buffers(predictor, history) + carry) * forecast
    )
    # Beside them a few numbers per tensor, such as the copies of step counts, and one per row.
    few = 64 * len(list(model.parameters())) + 4 * 2 * 64
    assert documented <= found <= documented + few


@pytest.mark.parametrize(("history", "most"), [("float32", 2), ("bfloat16", 1)])
def test_a_history_takes_no_more_than_two_buffers_and_half_as_much_in_bfloat16(history, most):
    assert all(buffers(predictor, history) <= most for predictor in PREDICTORS)
