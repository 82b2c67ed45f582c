"""Tasks for a GPU: nanoGPT's GPT on characters, and full steps of GPT-2 on random tokens.

Without a CUDA device they run on the CPU, for a rehearsal at toy size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.tasks.base import Batch, Recipe
from benchmarks.tasks.language import ByteGPT, CharacterTask
from benchmarks.tasks.texts import Text, characters


def device() -> torch.device:
    """Return the GPU, or the CPU if there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@lru_cache(maxsize=1)
def _placed(path: Path | None) -> Text:
    text, _ = characters(path)
    return replace(text, train=text.train.to(device()), val=text.val.to(device()))


@dataclass(frozen=True, kw_only=True)
class GPUTask(CharacterTask):
    """Predict characters in bfloat16 autocast; weights and the optimizer's state are float32."""

    small: ClassVar = {**CharacterTask.small, "heads": 2, "context": 16, "batch_size": 4}

    vocabulary: int = 0  #: that of the text if it is 0
    dropout: float = 0.0
    compiled: bool = False

    def net(self) -> ByteGPT:
        vocabulary = self.vocabulary or characters(self.path)[1]
        sizes = self.layers, self.heads, self.width, self.context, vocabulary
        return ByteGPT(*sizes, lean=True, dropout=self.dropout)

    def model(self, seed: int) -> nn.Module:
        model = super().model(seed).to(device())
        if self.compiled:
            # On a CPU this needs a C++ compiler otherwise.
            model.compile(backend="inductor" if device().type == "cuda" else "aot_eager")
        return model

    def data(self) -> Text:
        return _placed(self.path)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(device().type, torch.bfloat16):
            return super().loss(model, batch)


@dataclass(frozen=True, kw_only=True)
class TokensTask(GPUTask):
    """Predict random tokens, for the time of full steps of ``parts`` accumulated batches."""

    small: ClassVar = {**GPUTask.small, "vocabulary": 64}

    vocabulary: int = 50_304
    parts: int = 1

    def batches(self, seed: int) -> Iterator[Any]:
        generator = torch.Generator(device()).manual_seed(seed)
        size = (self.parts, self.batch_size, self.context + 1)
        while True:
            tokens = torch.randint(self.vocabulary, size, generator=generator, device=device())
            yield [(part[:, :-1], part[:, 1:]) for part in tokens]

    def full_step(self, model: nn.Module, batch: Sequence[Batch], *optimizers: Optimizer) -> Tensor:
        (optimizer,) = optimizers
        optimizer.zero_grad()
        losses = [self._accumulated(model, part) for part in batch]
        optimizer.step()
        return torch.stack(losses).mean()

    def _accumulated(self, model: nn.Module, part: Batch) -> Tensor:
        loss = self.loss(model, part)
        (loss / self.parts).backward()
        return loss.detach()

    def evaluate(self, model: nn.Module) -> float:
        (part,) = next(self.batches(0))[:1]
        return float(self.loss(model, part))


def shakespeare(path: Path | None = None) -> GPUTask:
    """NanoGPT's ``config/train_shakespeare_char.py`` (2022), unchanged, on a text file."""
    return GPUTask(
        name="nanogpt-gpu" if path is None else path.stem,
        title="nanoGPT's configuration for a GPU",
        steps=5000,
        layers=6,
        heads=6,
        width=384,
        context=256,
        batch_size=64,
        dropout=0.2,
        compiled=True,
        path=path,
        recipe=Recipe(
            rates=(1e-3,), betas=(0.9, 0.99), weight_decay=0.1, warmup_fraction=0.02,
            schedule="cosine",
        ),
    )  # fmt: skip


def _gpt2(name: str, tokens: int, *, compiled: bool) -> TokensTask:
    rows = 32
    context = 1024
    told = ", compiled" if compiled else ""
    return TokensTask(
        name=name,
        title=f"GPT-2, 124 M parameters, {tokens:,} tokens{told}",
        steps=1000,
        layers=12,
        heads=12,
        width=768,
        context=context,
        batch_size=rows,
        recipe=Recipe(learning_rate=6e-4, weight_decay=0.1),
        parts=tokens // (rows * context),
        compiled=compiled,
    )


_TIMED = (
    _gpt2("gpt2-32k", 32_768, compiled=False),
    _gpt2("gpt2-32k-compiled", 32_768, compiled=True),
    _gpt2("gpt2-524k", 524_288, compiled=False),
    _gpt2("gpt2-524k-compiled", 524_288, compiled=True),
)

TIMED = {task.name: task for task in _TIMED}  # tasks whose full steps are timed
