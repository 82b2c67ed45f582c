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


def test_a_failure_on_one_rank_ends_every_rank_as_it_was(tmp_path: Path) -> None:
    other, failed = launch(["distributed_failures:sharded"], tmp_path)["sharded"]
    assert (failed["type"], failed["text"]) == ("ZeroDivisionError", "no more")
    assert other["type"] == "RuntimeError"  # of the collective
    assert failed["whole"] and other["whole"]
    assert all(4 < result["steps"] < 20 for result in (other, failed))
