"""Each matrix is corrected on one rank, whatever the sharding."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed as dist

import distributed_four
from distributed_loops import Loop, outcome
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
        assert found["arrays"] == dict.fromkeys(found["arrays"], kept)


def test_under_ddp_the_state_of_any_rank_goes_on(results: Results) -> None:
    for found in results["ddp, resumed from any rank"]:
        assert found["alike"]
        assert same(found["left"], found["right"])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(["distributed_four"], tmp_path_factory.mktemp("four"), count=4)


@pytest.mark.parametrize("name", ["hsdp", "hybrid"])
def test_four_ranks_do_what_one_does(four: Results, name: str) -> None:
    loop = Loop(steps=distributed_four.STEPS)
    single = outcome(loop, loop.train())["weights"]
    first, *others = four[name]
    assert all(same(first, found) for found in others)
    for key, weight in single.items():
        assert first["weights"][key] == pytest.approx(weight, abs=1e-4, rel=1e-4)
