"""No part of a movement is lost to the rounding of weights in half precision."""

import copy

import pytest
import torch
from loops import make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridEngine, ParameterMapper, WeightDelta

HALF = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""The spacing of the numbers from 1 to 2."""


def ones(dtype):
    layer = nn.Linear(4, 4, bias=False).to(dtype)
    nn.init.ones_(layer.weight)
    return layer, ParameterMapper(layer)


def movement(length):
    return WeightDelta(("weight",), (torch.full((4, 4), length),), (1.0,))


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_a_movement_below_half_the_spacing_is_carried_until_it_counts(dtype):
    layer, mapper = ones(dtype)
    carries = {"weight": torch.zeros(4, 4)}
    swallowed = torch.ones(4, 4, dtype=dtype)
    length, ends = 0.3 * HALF[dtype], []
    for _ in range(10):
        mapper.apply(movement(length), carries)
        ends.append(layer.weight[0, 0].item())
        swallowed += length
    assert torch.equal(swallowed, torch.ones(4, 4, dtype=dtype))
    exact = [1 + k * length for k in range(1, 11)]
    assert all(abs(end - x) <= HALF[dtype] / 2 for end, x in zip(ends, exact, strict=True))
    assert ends[0] == 1.0
    assert ends[-1] + carries["weight"][0, 0].item() == pytest.approx(1 + 10 * length)


@pytest.mark.parametrize("how", ["host", "device", "withdrawn"])
def test_a_movement_that_is_undone_leaves_the_carry_as_it_was(how):
    layer, mapper = ones(torch.bfloat16)
    carries = {"weight": torch.zeros(4, 4)}
    for length in (0.001, 0.002):
        mapper.apply(movement(length), carries)
    before = copy.deepcopy([carries, weights(layer)])
    made = mapper.apply(movement(float("nan")), carries)
    made.undo_after_writes([0]) if how == "withdrawn" else made.undo(
        torch.tensor(False) if how == "device" else False
    )
    assert same_bits([carries, weights(layer)], before)
    torch.testing.assert_close(carries["weight"], torch.full((4, 4), 0.003))


def made(dtype=torch.bfloat16, rate=1e-2):
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)
    model = nn.Sequential(*layers).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return model, optimizer, HybridEngine(model, optimizer, make_config(total_steps=80))


def run(model, optimizer, engine, steps):
    for k in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(k))
        engine.before_step()
        loss = model(x.to(model[0].weight)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)


def test_a_run_in_half_precision_follows_that_in_32_bits():
    """Updates are shorter than the spacing of many weights: rounding alone would lose a part."""
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, optimizer, engine = made(dtype)
        start = weights(model)
        run(model, optimizer, engine, range(40))
        moved[dtype] = (model[2].weight.float() - start["2.weight"].float()).detach()
    carried = engine._state.groups.carries["2.weight"] + moved[torch.bfloat16]
    wanted = moved[torch.float32]
    assert wanted.abs().max() > 0
    assert torch.cosine_similarity(carried.flatten(), wanted.flatten(), dim=0) > 0.9


def test_the_carry_is_part_of_the_saved_state():
    model, optimizer, engine = made()
    run(model, optimizer, engine, range(20))
    saved = engine.state_dict()
    kept = copy.deepcopy(model.state_dict())
    assert any(bool(c.any()) for c in engine._state.groups.carries.values())
    run(model, optimizer, engine, range(20, 35))
    again, optimizer, engine = made()
    again.load_state_dict(kept)
    engine.load_state_dict(saved)
    run(again, optimizer, engine, range(20, 35))
    assert same_bits(weights(again), weights(model))
