"""Token shards as published for GPT-2 on FineWeb: a header of 256 int32, then tokens as uint16.

The header begins with the number 20240520, the version 1 and the number of tokens; the rest of it
is empty. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hybrid_predict.errors import ConfigError

MAGIC, VERSION, HEADER = 20240520, 1, 256
"""First two numbers of the header, and how many it has."""

Batch = tuple[Tensor, Tensor]

_GET = "Get the shards of GPT-2 tokens of FineWeb, fineweb_*.bin, and name their folder."


@dataclass(frozen=True)
class Shards:
    """Files of tokens in the order of their names, and the number of tokens in each."""

    argument: str
    paths: tuple[Path, ...]
    counts: tuple[int, ...]

    @staticmethod
    def find(pattern: str, argument: str) -> Shards:
        """The shards that a pattern such as ``data/fineweb_train_*.bin`` matches."""
        paths = tuple(sorted(Path(name) for name in glob(pattern)))
        if not paths:
            raise ConfigError(argument, "a pattern that matches token shards", pattern, _GET)
        return Shards(argument, paths, tuple(_count(path, argument) for path in paths))

    def batches(self, tokens: int) -> int:
        """How many batches there are; each lies in one shard, and what is left is passed over."""
        return sum((count - 1) // tokens for count in self.counts)

    def need(self, batches: int, tokens: int) -> None:
        """Make sure that there are so many batches."""
        if (held := self.batches(tokens)) < batches:
            expected = f"shards of at least {batches:,} batches of {tokens:,} tokens"
            raise ConfigError(self.argument, expected, held, _GET)

    def read(self, tokens: int, context: int) -> Iterator[Batch]:
        """Yield inputs and the tokens that follow, int64 of shape [tokens / context, context]."""
        for path, count in zip(self.paths, self.counts, strict=True):
            whole = np.memmap(path, np.uint16, "r", 4 * HEADER, (count,))
            for start in range(0, (count - 1) // tokens * tokens, tokens):
                part = torch.from_numpy(whole[start : start + tokens + 1].astype(np.int64))
                yield part[:-1].view(-1, context), part[1:].view(-1, context)


def _count(path: Path, argument: str) -> int:
    """Number of tokens in a shard."""
    header = np.fromfile(path, "<i4", HEADER)
    if len(header) < HEADER or tuple(header[:2]) != (MAGIC, VERSION):
        expected = f"token shards, whose headers begin with {MAGIC} and {VERSION}"
        raise ConfigError(argument, expected, f"{path}: {header[:2].tolist()}", _GET)
    count, held = int(header[2]), (path.stat().st_size - 4 * HEADER) // 2
    if held != count:
        expected = f"a whole shard; {path} is to hold {count:,} tokens"
        raise ConfigError(argument, expected, held, "Fetch it again.")
    return count
