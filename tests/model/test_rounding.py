"""No part of a movement is lost to the rounding of weights in half precision."""

import copy

import torch
from loops import make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridEngine


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
    skills = engine.ledger.skills
    again, optimizer, engine = made()
    again.load_state_dict(kept)
    engine.load_state_dict(saved)
    run(again, optimizer, engine, range(20, 35))
    assert same_bits(weights(again), weights(model))
    assert engine.ledger.skills == skills
