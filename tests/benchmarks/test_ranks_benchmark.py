"""What corrected updates were counted to send and compute is what the formulas say."""

import pytest

from benchmarks import load
from benchmarks.studies.ranks import FULL, by_formula, network
from hybrid_predict.tensors.shapes import direction_operations
from hybrid_predict.updates.spectral import SpectralUpdate

RESULTS = load("ranks.json")
SEVERAL = [row for row in RESULTS["rows"] if row["ranks"] > 1]


def named(row):
    return f"{row['setup']}, {row['ranks']}"


@pytest.mark.parametrize("row", SEVERAL, ids=named)
def test_counted_traffic_and_operations_are_those_of_the_formulas(row):
    each = row["each"]
    count = row["ranks"]
    whole = 4 * each[0]["elements"]
    names = ("all_to_all_single", "all_gather_single")
    received = sum(rank["received_bytes"].get(name, 0) for rank in each for name in names) / whole
    # Full matrices are gathered padded, and vectors about them as well.
    rel = 0.06 if row["setup"] == "DDP" else 1e-9
    assert received == pytest.approx(by_formula(row), rel=rel)
    alone = RESULTS["alone"]
    assert sum(rank["owned"] for rank in each) == alone["matrices"]
    assert sum(rank["operations"] for rank in each) == alone["operations"]
    assert max(rank["operations"] for rank in each) <= 1.1 / count * alone["operations"]


def test_counted_operations_are_those_of_the_budget():
    """Torch does not count inverses: here two of each matrix, as it is an early full step."""
    shapes = [layer.weight.shape for layer in network(FULL.counted)][:-1]
    inverses = sum(2 * min(shape) ** 3 for shape in shapes)
    counted = direction_operations(shapes, SpectralUpdate().longest, 1, products=False) - inverses
    assert counted == RESULTS["alone"]["operations"]
