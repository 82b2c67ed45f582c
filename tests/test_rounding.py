"""No part of a forecast is lost to the rounding of half-precision parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hybrid_predict import (
    CheckpointError,
    FixedHorizon,
    HybridConfig,
    HybridEngine,
    ParameterMapper,
    WeightDelta,
)
from loops import same_bits, weights

HALF = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""The spacing of the numbers from 1 to 2."""


def ones(dtype: torch.dtype) -> tuple[nn.Linear, ParameterMapper]:
    layer = nn.Linear(4, 4, bias=False).to(dtype)
    nn.init.ones_(layer.weight)
    return layer, ParameterMapper(layer, layer.parameters())


def forecast(length: float) -> WeightDelta:
    return WeightDelta(("weight",), (torch.full((4, 4), length),), (1.0,))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_forecast_below_half_an_ulp_is_carried_until_it_counts(dtype: torch.dtype) -> None:
    layer, mapper = ones(dtype)
    swallowed = nn.Parameter(torch.ones(4, 4, dtype=dtype))
    length, ends = 0.3 * HALF[dtype], []
    for _ in range(10):
        mapper.snapshot()
        mapper.apply(forecast(length))
        mapper.settle()
        mapper.rounding.commit()
        ends.append(float(layer.weight[0, 0].detach()))
        with torch.no_grad():
            swallowed += length
    assert torch.equal(swallowed, torch.ones(4, 4, dtype=dtype))
    exact = [1 + k * length for k in range(1, 11)]
    assert all(abs(end - x) <= HALF[dtype] / 2 for end, x in zip(ends, exact, strict=True))
    assert ends[0] == 1.0
    assert ends[-1] == pytest.approx(1 + 10 * length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_parameters_carry_nothing(dtype: torch.dtype) -> None:
    _, mapper = ones(dtype)
    mapper.snapshot()
    mapper.apply(forecast(0.1))
    mapper.settle()
    mapper.rounding.commit()
    assert mapper.rounding.state_dict() == {}


def undo(mapper: ParameterMapper, how: str) -> None:
    if how == "rollback":
        mapper.rollback()
    else:
        mapper.settle()
        good = torch.tensor(False) if how == "on the device" else False
        mapper.restore(good, mapper.parameters)


@pytest.mark.parametrize("how", ["rollback", "on the host", "on the device"])
def test_a_forecast_that_is_undone_leaves_the_carry_as_it_was(how: str) -> None:
    layer, mapper = ones(torch.bfloat16)
    for length in (0.001, 0.002):
        mapper.snapshot()
        mapper.apply(forecast(length))
        mapper.settle()
        mapper.rounding.commit()
    mapper.snapshot()
    before, base = dict(mapper.rounding.state_dict()), weights(layer)
    mapper.apply(forecast(float("nan")))
    undo(mapper, how)
    mapper.rounding.commit()
    assert same_bits(mapper.rounding.state_dict(), before)
    assert same_bits(weights(layer), base)
    torch.testing.assert_close(before["weight"], torch.full((4, 4), 0.003))


def test_a_forecast_hidden_and_shown_again_is_the_same() -> None:
    layer, mapper = ones(torch.bfloat16)
    mapper.snapshot()
    mapper.apply(forecast(0.03))
    seen = weights(layer)
    with mapper.base_weights():
        assert torch.equal(layer.weight, torch.ones_like(layer.weight))
    assert same_bits(weights(layer), seen)
    mapper.rounding.commit()
    (carry,) = mapper.rounding.state_dict().values()
    torch.testing.assert_close(layer.weight.float() + carry, torch.full((4, 4), 1.03))


def run(model: nn.Module, optimizer: Any, engine: HybridEngine, steps: range) -> None:
    for k in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(k)).bfloat16()
        engine.before_step()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)


def make() -> tuple[nn.Module, Any, HybridEngine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = HybridConfig(total_steps=60, horizon=FixedHorizon(updates=2.0))
    return model, optimizer, HybridEngine(model, optimizer, config)


def test_inside_a_full_step_the_saved_carry_is_that_of_the_moment_before() -> None:
    model, optimizer, engine = make()
    run(model, optimizer, engine, range(20))
    before = engine.state_dict()["rounding"]
    engine.before_step()
    assert engine.mapper.displaced
    assert same_bits(engine.state_dict()["rounding"], before)


def test_the_carry_is_part_of_the_saved_state() -> None:
    model, optimizer, engine = make()
    run(model, optimizer, engine, range(20))
    saved = engine.state_dict()
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    assert any(bool(c.any()) for c in saved["rounding"].values())
    run(model, optimizer, engine, range(20, 35))
    again, optimizer, engine = make()
    again.load_state_dict(kept)
    engine.load_state_dict(saved)
    run(again, optimizer, engine, range(20, 35))
    assert same_bits(weights(again), weights(model))


@pytest.mark.parametrize(
    "carry",
    [{"0.weight": torch.zeros(2)}, {"other": torch.zeros(6, 6)}, {"0.weight": None}, 3,
     {"0.weight": torch.full((6, 6), float("nan"))}],
    ids=["shape", "name", "nothing", "number", "nan"],
)  # fmt: skip
def test_a_carry_of_something_else_is_refused_and_changes_nothing(carry: Any) -> None:
    model, optimizer, engine = make()
    run(model, optimizer, engine, range(10))
    kept = engine.state_dict()
    with pytest.raises(CheckpointError, match="state: expected"):
        engine.load_state_dict({**kept, "rounding": carry})
    assert same_bits(engine.state_dict(), kept)
