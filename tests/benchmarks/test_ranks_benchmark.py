"""What corrected updates were counted to send and compute is what the formulas say."""

import pytest

from benchmarks import load, ranks

ROWS = load("ranks.json")["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['setup']}, {row['ranks']}")
def test_counted_traffic_and_operations_are_those_of_the_formulas(row):
    each, count = row["each"], row["ranks"]
    whole = 4 * each[0]["elements"]
    names = ("all_to_all_single", "all_gather_single")
    received = sum(rank["received_bytes"].get(name, 0) for rank in each for name in names) / whole
    formula = ranks._formula(row["setup"], count)
    # Full matrices are gathered padded, and vectors about them as well.
    assert received == pytest.approx(formula, rel=0.06 if row["setup"] == "DDP" else 1e-9)
    alone = load("ranks.json")["alone"]
    assert sum(rank["owned"] for rank in each) == alone["matrices"]
    assert sum(rank["operations"] for rank in each) == alone["operations"]
    assert max(rank["operations"] for rank in each) <= 1.1 / count * alone["operations"]


def test_the_table_by_formula_has_every_model_and_number_of_ranks():
    assert len(ranks.by_formula().splitlines()) == 2 + 3 * len(ranks.MODELS)
