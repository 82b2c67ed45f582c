"""Signals reach ranks at different moments; all ranks act on them after the same full step."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed as dist

from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(["distributed_signals"], tmp_path_factory.mktemp("signals"))


@pytest.mark.parametrize(("name", "late"), [("ddp", 0), ("fsdp2, late", 1)])
def test_all_ranks_learn_in_the_same_full_step_that_one_was_asked_to_stop(
    results: Results, name: str, late: int
) -> None:
    for found in results[f"{name}, asked"]:
        assert found["stops"] == [k == late for k in range(5)]
        assert found["resumed"] == [False] * 4  # what was saved is done
        assert found["plain"] == [False, True]
