"""The overview at the start of a run."""

import pytest
import torch
from loops import make_config, net, normal

from hybrid_predict import HybridEngine
from hybrid_predict.runs.overview import overview


def test_memory_counts_what_is_allocated_later():
    model = net(64, 128, 128, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    told = []
    with HybridEngine(model, optimizer, make_config(total_steps=120)) as engine:
        while not engine.done:
            engine.before_step()
            loss = model(normal(engine.position, 16, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            told.append(float(overview(engine).words["memory"].removesuffix(" MB")))
        held = engine._state.groups.held_bytes / 1e6
    assert told[0] == told[-1] == pytest.approx(held, abs=0.01)
    assert held > 0.4
