"""Corrected updates stay away from matrices whose optimizer projects or masks its updates."""

import pytest
import torch
from cases import OPTIMIZERS, UNGATED
from loops import Bench, Run, make_config, net, normal

from hybrid_predict import HybridConfig, HybridEngine

SIDE, LOST = 32, 8

BASIS = torch.linalg.qr(normal(5, SIDE, LOST))[0]
CONFIG = HybridConfig(total_steps=60, predictors=UNGATED)
ENTRIES = (torch.arange(SIDE**2).reshape(SIDE, SIDE) % 3 > 0).float()

PROJECTIONS = {
    "inputs": lambda g: g - g @ BASIS @ BASIS.T,
    "outputs": lambda g: g - BASIS @ (BASIS.T @ g),
    "entries": lambda g: g * ENTRIES,
}


class Projecting(torch.optim.SGD):
    """Projects the gradients of square matrices in its step, as methods against forgetting do."""

    kind = "inputs"

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.shape == (SIDE, SIDE):
                p.grad.copy_(PROJECTIONS[self.kind](p.grad))
        super().step(closure)


def loss(model, k):
    x = normal(k, 64, 8)
    return (model(x) - x.sum(1, keepdim=True).sin()).square().mean()


def projecting(kind, **options):
    model = net(8, SIDE, SIDE, 1)
    optimizer = Projecting(model.parameters(), lr=0.03, **options)
    optimizer.kind = kind
    return Run(model, optimizer, CONFIG, loss)


def told(engine):
    return [e["count"] for e in engine.ledger.events if "projects or masks" in e["reason"]]


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", PROJECTIONS)
def test_updates_stay_where_the_optimizer_projects_them(kind, options):
    run = projecting(kind, **options)
    start, other = run.model[2].weight.detach().clone(), run.model[0].weight.detach().clone()
    run.train(20)
    state = run.engine.state_dict()
    run.engine.detach()
    run.engine = HybridEngine(run.model, run.optimizer, CONFIG)
    run.engine.load_state_dict(state)
    run.finish()
    moved = run.model[2].weight.detach() - start
    assert (moved - PROJECTIONS[kind](moved)).norm() < 1e-5 * moved.norm()
    assert run.engine.ledger.predicted_steps > 0
    assert run.engine.ledger.corrected_steps > 0  # of the other matrix
    assert (run.model[0].weight - other).norm() > 0
    assert told(run.engine) == [1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_other_optimizer_is_taken_for_one_that_projects(name):
    bench = Bench(make_config(), optimizer=name)
    bench.finish()
    assert not told(bench.engine)
