"""Corrected updates stay away from matrices whose optimizer projects or masks its updates."""

import pytest
import torch
from cases import OPTIMIZERS, UNGATED
from loops import Bench, make_config
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

SIDE, LOST = 32, 8

GENERATOR = torch.Generator().manual_seed(5)
BASIS = torch.linalg.qr(torch.randn(SIDE, LOST, generator=GENERATOR))[0]
ENTRIES = (torch.arange(SIDE**2).reshape(SIDE, SIDE) % 3 > 0).float()


def of_inputs(g):
    return g - g @ BASIS @ BASIS.T


def of_outputs(g):
    return g - BASIS @ (BASIS.T @ g)


def of_entries(g):
    return g * ENTRIES


PROJECTIONS = {"inputs": of_inputs, "outputs": of_outputs, "entries": of_entries}


class Projecting(torch.optim.SGD):
    """Projects the gradients of square matrices in its step, as methods against forgetting do."""

    projection = None

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.shape == (SIDE, SIDE):
                    p.grad.copy_(type(self).projection(p.grad))
        super().step(closure)


def train(optimizer, model, speedup=1.5, steps=60):
    config = HybridConfig(total_steps=steps, predictors=UNGATED, speedup=speedup)
    engine = HybridEngine(model, optimizer, config)
    while not engine.done:
        engine.before_step()
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(engine.ledger.full_steps))
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)
    return engine


def network():
    torch.manual_seed(0)
    layers = nn.Linear(8, SIDE), nn.Tanh(), nn.Linear(SIDE, SIDE), nn.Tanh(), nn.Linear(SIDE, 1)
    return nn.Sequential(*layers)


def told(engine):
    return [e["count"] for e in engine.ledger.events if "projects or masks" in e["reason"]]


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", PROJECTIONS)
def test_updates_stay_where_the_optimizer_projects_them(kind, options, monkeypatch):
    projection = PROJECTIONS[kind]
    monkeypatch.setattr(Projecting, "projection", staticmethod(projection))
    model = network()
    start, other = model[2].weight.detach().clone(), model[0].weight.detach().clone()
    engine = train(Projecting(model.parameters(), lr=0.03, **options), model)
    moved = model[2].weight.detach() - start
    assert (moved - projection(moved)).norm() < 1e-5 * moved.norm()
    assert engine.ledger.predicted_steps > 0
    assert engine.ledger.corrected_steps > 0  # of the other matrix
    assert (model[0].weight - other).norm() > 0
    assert told(engine) == [1]


@pytest.mark.parametrize("speedup", [1, 1.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_other_optimizer_is_taken_for_one_that_projects(name, speedup):
    bench = Bench(make_config(speedup=speedup), optimizer=name)
    bench.finish()
    assert not told(bench.engine)
    found = [g.memory.examination.projected for g in bench.engine._state.groups if g.treatment.update]
    assert not any(answer for each in found for answer in each.values())


def test_what_was_found_is_resumed(monkeypatch):
    monkeypatch.setattr(Projecting, "projection", staticmethod(of_inputs))
    model = network()
    optimizer = Projecting(model.parameters(), lr=0.03, momentum=0.9)
    first = train(optimizer, model, steps=30)
    first.detach()
    second = HybridEngine(model, optimizer, HybridConfig(total_steps=60, predictors=UNGATED))
    second.load_state_dict(first.state_dict())
    groups = second._state.groups
    found = {n: x for group in groups for n, x in group.memory.examination.projected.items()}
    assert found == {"0.weight": False, "2.weight": True}


def test_first_updates_are_read_once():
    bench = Bench(make_config(), optimizer="sgd")
    bench.train(6)
    attempts = [g.memory.examination.attempts for g in bench.engine._state.groups]
    assert max(attempts) == 1
