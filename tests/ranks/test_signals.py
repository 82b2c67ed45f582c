"""Signals reach ranks at different moments; all ranks act on them after the same full step."""

from __future__ import annotations

from typing import Any

import pytest
from torch import distributed as dist

from launcher import launch, same

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(["distributed_signals"], tmp_path_factory.mktemp("signals"))


@pytest.mark.parametrize(("kind", "what"), [("ddp", "requeued"), ("fsdp2", "ended")])
def test_a_job_that_was_signalled_goes_on_bit_for_bit(
    results: Results, kind: str, what: str
) -> None:
    first, second = results[f"{kind}, {what}"]
    for found in (first, second):
        assert same(found["left"], found["right"], "weights", "ledger", "step", "random")
        assert found["left"]["step"] == 36 and found["left"]["ledger"]["predicted_steps"] > 10
    if what == "requeued":
        assert (first["told"], second["told"]) == ("requeue 4321\n", "")
    else:  # nobody has failed
        assert first["heard"] == second["heard"] == []


@pytest.mark.parametrize(("name", "late"), [("ddp", 0), ("fsdp2, late", 1)])
def test_all_ranks_learn_in_the_same_full_step_that_one_was_asked_to_stop(
    results: Results, name: str, late: int
) -> None:
    for found in results[f"{name}, asked"]:
        assert found["stops"] == [k == late for k in range(5)]
        assert found["resumed"] == [False] * 4  # what was saved is done
        assert found["plain"] == [False, True]
