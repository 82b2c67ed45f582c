"""A run that is killed at any moment goes on from its last checkpoint, bit for bit.

One such moment is in the table of faults.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning_killed import STATUS, check_ended_anywhere


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("number", STATUS)
def test_a_run_ended_at_a_random_moment_goes_on_bit_for_bit(
    tmp_path: Path, number: int, seed: int
) -> None:
    check_ended_anywhere(tmp_path, number, seed)
