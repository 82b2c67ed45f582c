"""What corrected updates were counted to send, compute and hold is what the formulas say."""

import math

import pytest
import torch

from benchmarks import load
from benchmarks.ranks import foretold, table
from benchmarks.ranks.loops import network
from benchmarks.ranks.measure import FULL, _Peak
from hybrid_predict.rules.budget import direction_operations

RESULTS = load("ranks.json")
SEVERAL = [row for row in RESULTS["rows"] if row["ranks"] > 1]


def named(row):
    return f"{row['setup']}, {row['ranks']}"


@pytest.mark.parametrize("row", SEVERAL, ids=named)
def test_counted_traffic_and_operations_are_those_of_the_formulas(row):
    each, count = row["each"], row["ranks"]
    whole = 4 * each[0]["elements"]
    names = ("all_to_all_single", "all_gather_single")
    received = sum(rank["received_bytes"].get(name, 0) for rank in each for name in names) / whole
    # Full matrices are gathered padded, and vectors about them as well.
    rel = 0.06 if row["setup"] == "DDP" else 1e-9
    assert received == pytest.approx(table.formula(row), rel=rel)
    alone = RESULTS["alone"]
    assert sum(rank["owned"] for rank in each) == alone["matrices"]
    assert sum(rank["operations"] for rank in each) == alone["operations"]
    assert max(rank["operations"] for rank in each) <= 1.1 / count * alone["operations"]


def test_counted_operations_are_those_of_the_budget():
    """Torch does not count inverses: here two of each matrix, as it is an early full step."""
    shapes = [layer.weight.shape for layer in network(FULL.counted)][:-1]
    inverses = sum(2 * min(shape) ** 3 for shape in shapes)
    counted = direction_operations(shapes, foretold.LONGEST, 1, products=False) - inverses
    assert counted == RESULTS["alone"]["operations"]


@pytest.mark.parametrize("row", RESULTS["rows"], ids=named)
def test_memory_is_what_the_engine_says_and_whole_matrices_stay_within_their_bound(row):
    for rank in row["each"]:
        for kept in rank["memory"].values():
            assert kept["tensors"] == pytest.approx(kept["told"], rel=0.01)
        assert rank["together"]["wholes"] <= rank["together"]["bound"]
    if row["setup"] != "DDP" and row["ranks"] > 1:
        assert 1 < table.work_space(row) < 6


def test_a_peak_counts_storages_while_a_tensor_on_them_is_alive():
    peak = _Peak()
    first = torch.zeros(10)
    peak.add(first)
    view = first[2:]
    peak.add(view)
    assert peak.most == 40
    del first
    second = torch.zeros(100)
    peak.add(second)
    assert peak.most == 440
    del view, second
    peak.add(torch.zeros(105))
    assert peak.most == 440


def test_the_table_by_formula_has_every_model_and_set_up():
    small = sum(model.parameters <= foretold.LARGEST for model in foretold.MODELS.values())
    sharded = sum(setup != "DDP" for setup, _ in foretold.PLACES)
    replicated = len(foretold.PLACES) - sharded
    lines = foretold.by_formula().splitlines()
    assert len(lines) == 2 + sharded * len(foretold.MODELS) + replicated * small


@pytest.mark.parametrize("setup", ["FSDP2", "HSDP"])
def test_on_more_ranks_each_of_them_computes_and_receives_less(setup):
    model = foretold.MODELS["Llama 3, 8 B"]
    few, many = (foretold.load(model, setup, ranks) for ranks in (64, 1024))
    assert many.operations < few.operations
    assert many.received < few.received
    largest, total = max(map(math.prod, model.shapes)), sum(map(math.prod, model.shapes))
    assert few.whole >= 4 * largest
    assert few.received < 4 * total / foretold.NODE * 1.1
