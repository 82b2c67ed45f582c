"""No part of a movement is lost to the rounding of weights in half precision."""

import torch
from loops import Run, make_config, net, normal


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
