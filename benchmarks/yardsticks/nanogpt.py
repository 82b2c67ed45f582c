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

from benchmarks.tasks import Recipe
from benchmarks.tasks.byte_gpt import ByteGPT
from benchmarks.tasks.stdlib_text import StdlibText, source_text
from benchmarks.tasks.text import TextTask
from benchmarks.yardsticks.plan import Case, Yardstick
from hybrid_predict.errors import ConfigError

CHARACTERS, VOCABULARY = 1_115_394, 65
"""Size of tiny Shakespeare, which the published loss is measured on, and its distinct characters.

Other texts are cut to this size.
"""

PUBLISHED = "published, on tiny Shakespeare: 1.88"

ARMS = ("short", "plain", "plain-double", "corrected", "hybrid", "auto", "muon")


@dataclass(frozen=True)
class Characters:
    """A text as numbers of its distinct characters: nine tenths for training, the rest held out."""

    text: StdlibText
    count: int
    vocabulary: int

    @property
    def published(self) -> bool:
        """Whether it is the text that the published loss is measured on."""
        return (self.count, self.vocabulary) == (CHARACTERS, VOCABULARY)


@lru_cache(maxsize=2)
def characters(path: Path | None) -> Characters:
    """Read a text file; None is the source text of the standard library.

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
    text = StdlibText.of(bytearray(coded[:cut]), bytearray(coded[cut:]))
    return Characters(text, len(coded), len(known))


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
        return characters(self.path).text

    def net(self) -> torch.nn.Module:
        vocabulary = characters(self.path).vocabulary
        return ByteGPT(self.layers, self.heads, self.width, self.context, vocabulary, lean=True)

    def to_dict(self) -> dict[str, Any]:
        return {k: v for k, v in super().to_dict().items() if k != "path"}


def nanogpt(path: Path | None = None) -> Yardstick:
    """Return the yardstick on a text file, or on the standard library's source text."""
    task = CharacterTask(
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
    return Yardstick(name="nanogpt", arms=ARMS, cases=(Case(task=task, published=PUBLISHED),))
