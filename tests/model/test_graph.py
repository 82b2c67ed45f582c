"""The kinds of parameters as the graph of a loss shows them."""

import pytest
import torch
from graph_cases import CASES

from hybrid_predict.model.graph import GraphFindings
from hybrid_predict.model.kinds import classify, matrix_index, resolve


def resolved(model, losses, owners=None, after=True):
    """Kinds of the trained matrices by name, and what was not seen."""
    found, about = GraphFindings(), matrix_index(model, owners)
    for loss in losses if isinstance(losses, list) else [losses]:
        loss.backward() if after else None
        found.add(loss, about)
        loss.backward() if not after else None
    moved = {id(p) for p in model.parameters() if p.grad is not None}
    kinds, unseen = resolve(model, classify(model, owners), found, about, moved)
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    by_name = {name: kinds[key] for key, name in named.items() if kinds[key] != "vector"}
    return by_name, sorted(named[key] for key in unseen)


@pytest.mark.parametrize("after", [False, True], ids=["before backward", "after it"])
@pytest.mark.parametrize("name", CASES)
def test_the_graph_shows_which_matrices_end_the_network(name, after):
    case = CASES[name]
    torch.manual_seed(0)
    model = case.build()
    kinds, unseen = resolved(model, case.loss(model), after=after)
    for kind in ("head", "embedding"):
        assert sorted(n for n, k in kinds.items() if k == kind) == getattr(case, kind)
    assert unseen == case.unseen
