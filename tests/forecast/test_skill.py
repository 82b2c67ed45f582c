"""Skill of whole runs is that of a replay of the trajectory."""

import numpy as np
import pytest
import torch
from loops import Run, net, normal

from hybrid_predict import HybridConfig, MomentumPredictor

LENGTH = 20


def test_skill_is_that_of_a_replay_in_64_bits():
    """The trajectory is saved at every full step; a predicted step moves nothing at coefficient 0,
    but it has a direction, so the replay measures the drift's."""
    model, decay = net(16, 200, 200, 200, 1), 0.9
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    predictor = MomentumPredictor(decay=decay, coefficient=1e-6, gated=False)
    config = HybridConfig(
        total_steps=170, speedup=1.2, predictors={"hidden": predictor}, max_overhead=1e9
    )

    def loss(model, k):
        x = normal(k, 32, 16)
        return (model(x) - x.sum(1, keepdim=True).sin()).square().mean()

    run = Run(model, optimizer, config, loss)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 200)
    displacements, random = [], torch.get_rng_state()
    while not run.engine.done:
        rate = optimizer.param_groups[0]["lr"]
        for _ in range(run.step().ticks):
            scheduler.step()
        moved = [run.inside[-1][f"{k}.weight"].double() / rate for k in (0, 2, 4)]
        displacements.append(torch.cat([m.flatten() for m in moved]))
    assert torch.equal(torch.get_rng_state(), random)  # not for samples either
    drift, skills, opened, total = 0.0, [], None, 0.0
    for t, moved in enumerate(displacements, 1):
        if opened is not None:
            total = total + moved
            if t % LENGTH == 0:
                cosine = float(opened @ total / opened.norm() / total.norm())
                skills.append(cosine * abs(cosine))
                opened = None
        own = min(decay, 1 - 1 / t)
        drift = own * drift + (1 - own) * moved
        if opened is None and t >= LENGTH // 2:
            opened, total = drift.clone(), 0.0
    assert len(skills) > 5
    ledger = run.engine.ledger
    assert ledger.skill == pytest.approx(np.mean(skills), abs=0.005)
    assert ledger.skills["hidden"]["windows"] == len(skills)
    assert run.records[-1].skill == ledger.skill
