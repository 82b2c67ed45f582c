"""The kinds of parameters as the graph of a loss shows them."""

import pytest
import torch
from graph_cases import CASES
from graph_kinds import resolved


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
