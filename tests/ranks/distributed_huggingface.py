"""What two ranks do in a Trainer of Hugging Face transformers; judged in its test."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from huggingface_models import OPTIONS, trained

from hybrid_predict.integrations.huggingface import HybridPredictCallback


def run(folder: Path, resume: str | None = None) -> dict[str, Any]:
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


CHECKS = {
    "whole": run,
    "resumed": lambda folder: run(folder, str(folder / "hf" / "checkpoint-14")),
}
