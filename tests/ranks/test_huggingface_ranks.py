"""Two ranks in a Trainer of Hugging Face transformers take the same steps, and resume them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from loops import same_bits

from launcher import launch

pytest.importorskip("transformers")


def run(folder: Path, resume: str | None = None) -> dict[str, Any]:
    """What a rank ends with."""
    from huggingface_models import OPTIONS, trained

    from hybrid_predict.integrations.huggingface import HybridPredictCallback

    warnings.simplefilter("ignore")
    callback = HybridPredictCallback(**OPTIONS)
    saving = {"save_strategy": "steps", "save_steps": 7, "gradient_accumulation_steps": 2}
    trainer = trained(folder / "hf", callback, resume=resume, ddp_backend="gloo", **saving)
    return {
        "wrapped": type(trainer.model_wrapped).__name__,
        "weights": trainer.model.state_dict(),
        "global_step": trainer.state.global_step,
        "full_steps": callback.ledger.full_steps,
        "steps": callback.ledger.steps,
    }


CHECKS = {"whole": run, "resumed": lambda folder: run(folder, str(folder / "hf" / "checkpoint-14"))}


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_agree_and_resume_bit_for_bit(tmp_path: Path) -> None:
    found = launch(["test_huggingface_ranks"], tmp_path)
    runs = [*found["whole"], *found["resumed"]]
    assert all(same_bits(run, runs[0]) for run in runs)
    assert runs[0]["wrapped"] == "DistributedDataParallel"
    assert runs[0]["steps"] == 30
    assert runs[0]["full_steps"] == runs[0]["global_step"] < 25
