"""When one rank fails, no rank hangs, and all are as they were before the full step."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import distributed as dist

from launcher import launch

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]

CASES = {
    "memory": (0, "OutOfMemoryError", "no more"),
    "sharded": (1, "ZeroDivisionError", "no more"),
    "loader": (1, "OSError", "the share is gone"),
}
SLOW = {"memory": [pytest.mark.slow]}


@pytest.mark.parametrize("case", [pytest.param(c, marks=SLOW.get(c, [])) for c in CASES])
def test_a_failure_on_one_rank_ends_every_rank_as_it_was(tmp_path: Path, case: str) -> None:
    rank, error, words = CASES[case]
    found = launch([f"distributed_failures:{case}"], tmp_path)[case]
    failed, other = found[rank], found[1 - rank]
    assert (failed["type"], failed["text"]) == (error, words)
    assert other["type"] == "RuntimeError"  # of the collective
    assert failed["whole"] and other["whole"]
    assert all(4 < result["steps"] < 20 for result in found)


@pytest.mark.slow
def test_a_failure_on_one_rank_ends_every_trainer(tmp_path: Path) -> None:
    first, second = launch(["distributed_failures:trainer"], tmp_path)["trainer"]
    assert (first["type"], second["type"]) == ("RuntimeError", "OSError")
    assert first["whole"] and second["whole"]
