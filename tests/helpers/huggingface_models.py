"""A small language model, its data, and a Trainer of Hugging Face transformers for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from cases import UNGATED
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

SIZE, STEPS = 6, 30
OPTIONS: dict[str, Any] = {
    "speedup": 1.5, "warmup_steps": 2, "cooldown_steps": 1, "max_overhead": 100.0,
    "predictors": UNGATED,
}  # fmt: skip


def gpt() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=8,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def data(batches: int) -> list[dict[str, Tensor]]:
    tokens = torch.randint(0, 64, (batches * SIZE, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def schedule(model: nn.Module, steps: int = STEPS) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, CosineAnnealingLR(optimizer, steps)


class Ordered(transformers.Trainer):
    """Reads its data in order, and averages the losses of batches as a plain loop does."""

    per_token = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = self.per_token

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trained(
    folder: Path,
    callback: Any,
    model: nn.Module | None = None,
    *,
    batches: int = 10,
    resume: Any = None,
    also: Any = (),
    optimizers: Any = None,
    **arguments: Any,
) -> Any:
    """A Trainer that has trained."""
    model = gpt() if model is None else model
    length = {} if "num_train_epochs" in arguments else {"max_steps": STEPS}
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 5}
    args = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=SIZE, max_grad_norm=0.0, use_cpu=True,
        dataloader_pin_memory=False, **{**length, **quiet, **arguments},
    )  # fmt: skip
    found = schedule(model) if optimizers is None else optimizers
    trainer = Ordered(
        model=model, args=args, train_dataset=data(batches), eval_dataset=data(1),
        optimizers=found, callbacks=[callback, *also],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer
