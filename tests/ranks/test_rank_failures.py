"""When one rank fails, no rank hangs, and the others say which one failed and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import distributed as dist

from hybrid_predict import RankError
from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

CASES = {
    "memory": (0, "OutOfMemoryError", "no more"),
    "sharded": (1, "ZeroDivisionError", "no more"),
    "loader": (1, "OSError", "the share is gone"),
    "stale": (1, "ZeroDivisionError", "no more"),
}
SLOW = {"memory": [pytest.mark.slow], "stale": [pytest.mark.slow]}


@pytest.mark.parametrize("case", [pytest.param(c, marks=SLOW.get(c, [])) for c in CASES])
def test_a_failure_on_one_rank_ends_every_rank_as_it_was(tmp_path: Path, case: str) -> None:
    rank, error, words = CASES[case]
    found = launch([f"distributed_failures:{case}"], tmp_path)[case]
    failed, other = found[rank], found[1 - rank]
    assert (failed["type"], failed["text"]) == (error, words)
    assert other["type"] == RankError.__name__
    # Rank 0 keeps the store here, and its word ends with it.
    told = f"rank {rank} failed with {error}: {words}" if rank else "store"
    assert told in other["text"]
    assert failed["whole"] and other["whole"]
    assert all(4 < result["steps"] < 20 for result in found)


def test_the_page_shows_what_the_other_ranks_end_with() -> None:
    page = Path(__file__).parents[2] / "docs" / "distributed.md"
    told = str(RankError(1, "OSError: the share is gone"))
    assert told in " ".join(page.read_text().split())


@pytest.mark.slow
def test_a_trainer_names_the_rank_that_failed_first(tmp_path: Path) -> None:
    first, second = launch(["distributed_failures:trainer"], tmp_path)["trainer"]
    assert second["type"] == "OSError"
    assert "rank 1 failed with OSError: the share is gone" in first["text"]
    assert first["whole"] and second["whole"]
