"""No part of a movement is lost to the rounding of weights in half precision."""

import copy

import torch
from loops import Run, make_config, net, normal, same_bits, weights


def made(dtype=torch.bfloat16, rate=1e-2):
    model = net(6, 6, 6, 2).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    def loss(model, k):
        x = normal(k, 8, 6)
        return model(x.to(dtype)).square().mean()

    return Run(model, optimizer, make_config(total_steps=80), loss)


def test_a_run_in_half_precision_follows_that_in_32_bits():
    """Updates are shorter than the spacing of many weights: rounding alone would lose a part."""
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        run = made(dtype)
        start = run.model[2].weight.detach().float().clone()
        moved[dtype] = (run.train(40).model[2].weight.float() - start).detach()
    carried = run.engine._state.groups.carries["2.weight"] + moved[torch.bfloat16]
    wanted = moved[torch.float32]
    assert wanted.abs().max() > 0
    assert torch.cosine_similarity(carried.flatten(), wanted.flatten(), dim=0) > 0.9


def test_the_carry_is_part_of_the_saved_state():
    run, again = made().train(20), made()
    saved = copy.deepcopy([run.model.state_dict(), run.engine.state_dict()])
    for part, state in zip((again.model, again.engine), saved, strict=True):
        part.load_state_dict(state)
    again.records = list(run.records)
    for one in (run, again):
        one.train(15)
    assert same_bits(weights(again.model), weights(run.model))
    assert again.engine.ledger.skills == run.engine.ledger.skills
