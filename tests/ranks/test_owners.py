"""Each matrix is whole on one rank, which corrects it, and no more is sent than that needs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from loops import same_bits
from torch import distributed as dist

from distributed_loops import Loop, outcome
from hybrid_predict.ranks.owners import rounds
from launcher import launch, same

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]

SHARDED = ("fsdp2", "fsdp2, columns, rounds", "fsdp1, rounds")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(["distributed_owners"], tmp_path_factory.mktemp("owners"))


@pytest.mark.parametrize("name", ["ddp", *SHARDED])
def test_each_matrix_is_corrected_on_its_owner_alone(results: Results, name: str) -> None:
    ranks = results[f"owners, {name}"]
    shapes, owners = ranks[0]["shapes"], ranks[0]["owners"]
    assert [found["owners"] for found in ranks] == [owners] * 2
    assert set(owners) == {0, 1}
    for rank, found in enumerate(ranks):
        own = [shape for shape, owner in zip(shapes, owners, strict=True) if owner == rank]
        assert found["seen"] == own
        kept = [owner == rank for owner in owners]
        # Vectors about unsharded matrices are kept on all ranks.
        every = [True] * len(owners) if name == "ddp" else kept
        wanted = {"update.energies": every, "update.levels": every, "update.steps": every}
        assert found["arrays"] == {**wanted, "update.roots": kept}


@pytest.mark.parametrize("name", SHARDED)
def test_no_rank_holds_a_whole_matrix_of_another(results: Results, name: str) -> None:
    for rank, found in enumerate(results[f"owners, {name}"]):
        for shape, owner in zip(found["shapes"], found["owners"], strict=True):
            # Others could be a Gram matrix of another, or its covariance with the root.
            if shape[1] - shape[0] not in (0, 1):
                assert (shape in found["held"]) is (owner == rank)


@pytest.mark.parametrize("name", [*SHARDED, "fsdp2, own"])
def test_sharded_matrices_travel_once_to_the_owner_and_once_back(
    results: Results, name: str
) -> None:
    ranks = results[f"owners, {name}"]
    columns = list(zip(*(found["parts"] for found in ranks), strict=True))
    elsewhere = [
        sum(parts) - parts[o] for parts, o in zip(columns, ranks[0]["owners"], strict=True)
    ]
    assert sum(found["received"]["all_to_all_single"] for found in ranks) == 2 * sum(elsewhere)
    assert all(set(found["received"]) == {"all_to_all_single"} for found in ranks)


def test_directions_of_full_matrices_are_gathered_once(results: Results) -> None:
    ranks = results["owners, ddp"]
    rows = list(zip(ranks[0]["shapes"], ranks[0]["owners"], strict=True))
    sizes = [sum(math.prod(shape) for shape, o in rows if o == rank) for rank in range(2)]
    vectors = [sum(2 * m + n + 1 for (m, n), o in rows if o == rank) for rank in range(2)]
    for found in ranks:
        (number,) = found["received"].values()
        assert number == max(sizes) + max(vectors)


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_ranks_agree_on_turns_and_each_has_about_the_same_in_every_step(
    results: Results, name: str
) -> None:
    left, right = results[f"turns, {name}"]
    assert left["period"] == right["period"] > 1
    assert left["turns"] == right["turns"] and left["owners"] == right["owners"]
    assert same(left, right)
    pairs = list(zip(left["owners"], left["turns"], strict=True))
    assert len(set(pairs)) == len(pairs)  # none has two matrices in one step, and none in others


def test_under_ddp_the_state_of_any_rank_goes_on(results: Results) -> None:
    for found in results["ddp, resumed from any rank"]:
        assert found["alike"]
        assert same(found["left"], found["right"])


def test_under_ddp_one_rank_can_save_alone(results: Results) -> None:
    first, second = results["ddp, saved alone"]
    assert first["alike"] and not second["alike"]
    assert same_bits(first["groups"], second["groups"])


def test_matrices_that_differ_between_ranks_are_refused(results: Results) -> None:
    assert all("ranks that differ" in told for told in results["unequal"])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(["distributed_four"], tmp_path_factory.mktemp("four"), count=4)


def test_one_matrix_is_corrected_on_one_rank_and_not_padded(four: Results) -> None:
    ranks = four["one matrix"]
    assert [len(found["seen"]) for found in ranks] == [1, 0, 0, 0]
    assert all(found["received"] == {"all_reduce": 15 * 15 + 3 * 15 + 1} for found in ranks)


@pytest.mark.parametrize("name", ["hsdp", "hybrid"])
def test_four_ranks_do_what_one_does(four: Results, name: str) -> None:
    loop = Loop()
    single = outcome(loop, loop.train())["weights"]
    first, *others = four[name]
    assert all(same(first, found) for found in others)
    for key, weight in single.items():
        assert first["weights"][key] == pytest.approx(weight, abs=1e-4, rel=1e-4)


def test_rounds_bound_what_each_owner_has_at_a_time() -> None:
    sizes, owners = [6, 5, 20, 4, 1, 3], [0, 0, 1, 0, 1, 0]
    assert rounds(sizes, owners, 10) == [[0, 2], [1, 3, 4], [5]]
    assert rounds(sizes, owners, 100) == [[0, 1, 2, 3, 4, 5]]
