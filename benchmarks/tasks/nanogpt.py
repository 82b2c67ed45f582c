"""nanoGPT's published CPU configuration: a character-level GPT on Shakespeare.

The recipe is that of the README of github.com/karpathy/nanoGPT (2022): 4 layers, 4 heads, width
128, windows of 64 characters, 12 in a batch, 2,000 iterations, no dropout; validation loss 1.88.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.tasks.base import Recipe
from benchmarks.tasks.byte_gpt import ByteGPT
from benchmarks.tasks.stdlib_text import StdlibText, source_text
from benchmarks.tasks.text import TextTask
from hybrid_predict.errors import ConfigError

CHARACTERS = 1_115_394
"""Size of tiny Shakespeare, which the published loss is measured on; other texts are cut to it."""

PUBLISHED = "published, on tiny Shakespeare: 1.88"


@lru_cache(maxsize=2)
def characters(path: Path | None) -> tuple[StdlibText, int]:
    """Read a text file; None is the source text of the standard library.

    Returns the text as numbers of its distinct characters, nine tenths for training and the rest
    held out, and how many distinct ones there are.

    Raises:
        ConfigError: If the file cannot be read or is too short.
    """
    try:
        content = path.read_bytes() if path else source_text().train.numpy().tobytes()
    except OSError as error:
        raise ConfigError("text", "a text file", str(path), "Check the path.") from error
    content = content[:CHARACTERS]
    if len(content) < 1000:
        raise ConfigError("text", "at least 1,000 characters", len(content), "Take a longer text.")
    known = sorted(set(content))
    coded = content.translate(bytes(known.index(c) if c in known else 0 for c in range(256)))
    cut = int(0.9 * len(coded))
    return StdlibText.of(bytearray(coded[:cut]), bytearray(coded[cut:])), len(known)


@dataclass(frozen=True, kw_only=True)
class CharacterTask(TextTask):
    """Predict the next character with nanoGPT's model."""

    small: ClassVar = {"validation_batches": 1, "layers": 1, "width": 16}

    batch_size: int = 12
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    path: Path | None = None

    def window(self) -> int:
        return self.context

    def data(self) -> StdlibText:
        return characters(self.path)[0]

    def net(self) -> torch.nn.Module:
        vocabulary = characters(self.path)[1]
        return ByteGPT(self.layers, self.heads, self.width, self.context, vocabulary, lean=True)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().to_dict().items() if k != "path"}


def nanogpt(path: Path | None = None) -> CharacterTask:
    """Return the task on a text file, or on the standard library's source text."""
    return CharacterTask(
        name="stdlib" if path is None else path.stem,
        title="nanoGPT's CPU configuration",
        steps=2000,
        path=path,
        recipe=Recipe(
            learning_rate=1e-3,
            rates=(1e-3,),
            betas=(0.9, 0.99),
            weight_decay=0.1,
            schedule="cosine",
        ),
    )
