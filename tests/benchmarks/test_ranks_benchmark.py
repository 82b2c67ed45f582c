"""What corrected updates were counted to send and compute is what the formulas say."""

import pytest

from benchmarks import load
from benchmarks.plan import Selection
from benchmarks.studies.ranks import FULL, HSDP, RanksPlan, network, received
from hybrid_predict.tensors.shapes import direction_operations
from hybrid_predict.updates.spectral import SpectralUpdate

RESULTS = load("ranks.json")


@pytest.mark.slow
@pytest.mark.parametrize(("setup", "gathered"), [("DDP", 0), ("FSDP2", 1), (HSDP, 0)])
def test_two_ranks_receive_and_compute_what_the_formulas_say(setup, gathered):
    row = RanksPlan(Selection()).work((setup, 2))
    # Vectors about whole matrices are sent with their directions.
    assert received(row) == pytest.approx(gathered + 1, rel=0.06 if setup == "DDP" else 1e-9)
    alone = RESULTS["alone"]
    assert sum(rank["owned"] for rank in row["each"]) == alone["matrices"]
    assert sum(rank["operations"] for rank in row["each"]) == alone["operations"]
    assert max(rank["operations"] for rank in row["each"]) <= 0.55 * alone["operations"]


def test_counted_operations_are_those_of_the_budget():
    """Torch does not count inverses: here two of each matrix, as it is an early full step."""
    shapes = [layer.weight.shape for layer in network(FULL)][:-1]
    inverses = sum(2 * min(shape) ** 3 for shape in shapes)
    counted = direction_operations(shapes, SpectralUpdate().longest, 1, products=False) - inverses
    assert counted == RESULTS["alone"]["operations"]
