"""Two ranks in a Trainer of Hugging Face transformers take the same steps, and resume them."""

from __future__ import annotations

from pathlib import Path

import pytest
from loops import same_bits

from launcher import launch

pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_agree_and_resume_bit_for_bit(tmp_path: Path) -> None:
    found = launch(["distributed_huggingface"], tmp_path)
    runs = [*found["whole"], *found["resumed"]]
    assert all(same_bits(run, runs[0]) for run in runs)
    assert runs[0]["wrapped"] == "DistributedDataParallel"
    assert runs[0]["steps"] == 30
    assert runs[0]["full_steps"] == runs[0]["global_step"] < 25
