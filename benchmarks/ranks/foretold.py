"""Operations and traffic of corrected updates in larger models and on more ranks, by formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from benchmarks.table import markdown
from hybrid_predict.rules.budget import direction_operations
from hybrid_predict.rules.owners import MOST_TOGETHER, deal
from hybrid_predict.updates.spectral import SEEN_EVERY, SpectralUpdate

LONGEST = SpectralUpdate().longest
"""Longest side with a covariance."""

TOKENS = 8192
"""Tokens of a batch for each rank; ranks that share a batch have as many together."""

NODE = 8
"""Ranks of a copy in HSDP, and of tensor parallelism."""

LARGEST = 4e9
"""Most parameters that plain data parallelism is shown for: with AdamW they take 64 GB a rank."""


class Model(NamedTuple):
    """Layers, their width, shapes of the hidden matrices of one, and number of parameters."""

    layers: int
    width: int
    sides: tuple[tuple[int, int], ...]
    parameters: float

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of all hidden matrices."""
        return [*self.sides] * self.layers


def _gpt2(layers: int, width: int, parameters: float) -> Model:
    sides = tuple((a * width, b * width) for a, b in [(3, 1), (1, 1), (4, 1), (1, 4)])
    return Model(layers, width, sides, parameters)


def _llama(layers: int, width: int, wide: int, keys: int, parameters: float) -> Model:
    attention = [(width, width)] * 2 + [(keys, width)] * 2
    sides = (*attention, (wide, width), (wide, width), (width, wide))
    return Model(layers, width, sides, parameters)


MODELS: dict[str, Model] = {
    "GPT-2, 124 M": _gpt2(12, 768, 124e6),
    "GPT-2, 1.5 B": _gpt2(48, 1600, 1.56e9),
    "Llama 3, 8 B": _llama(32, 4096, 14336, 1024, 8.03e9),
    "Llama 3, 70 B": _llama(80, 8192, 28672, 1024, 70.6e9),
}

PLACES = (
    ("DDP", 8), ("DDP", 1024), ("FSDP2", 8), ("FSDP2", 64), ("FSDP2", 1024),
    ("HSDP", 64), ("HSDP", 1024), ("TP 8", 8),
)  # fmt: skip
"""Set-ups and numbers of ranks."""


def received(setup: str, ranks: int, copies: int = 1) -> float:
    """Return what all ranks receive for corrections, in matrices, without padding.

    Owners get averages, and send directions.
    """
    if setup == "DDP":
        return ranks - 1.0
    return 1 - copies / ranks + (ranks - 1) / ranks * copies


def _without(model: Model, setup: str, ranks: int) -> float:
    """Bytes that a rank receives in a full step without the plug-in.

    DDP reduces gradients in 32 bits. FSDP2 and HSDP gather the parameters twice and reduce
    gradients once, in 16 bits, within a copy; copies then reduce shards. Tensor parallelism reduces
    activations in 16 bits, four times in a layer.
    """
    away = 1 - 1 / ranks
    if setup == "DDP":
        return 4 * 2 * away * model.parameters
    if setup == "FSDP2":
        return 2 * 3 * away * model.parameters
    within = 1 - 1 / NODE
    if setup == "HSDP":
        copies = ranks // NODE
        shard = model.parameters / NODE
        return 2 * (3 * within * model.parameters + 2 * (1 - 1 / copies) * shard)
    return 2 * 2 * within * 4 * model.layers * NODE * TOKENS * model.width


class Load(NamedTuple):
    """What corrections take of a rank: operations and bytes.

    ``operations`` and ``whole`` are those of the busiest rank, ``mean`` is the mean of operations;
    ``received`` is the mean of what ranks receive.
    """

    operations: float
    mean: float
    received: float
    whole: int


def load(model: Model, setup: str, ranks: int) -> Load:
    """Return what corrections of whole matrices take, with the rule that deals them."""
    shapes = model.shapes
    sizes = list(map(prod, shapes))
    work = [direction_operations([shape], LONGEST, SEEN_EVERY, products=True) for shape in shapes]
    owners = deal([w + n for w, n in zip(work, sizes, strict=True)], ranks)
    loads, own = Counter[int](), Counter[int]()
    for k, owner in enumerate(owners):
        loads[owner] += work[k]
        own[owner] += sizes[k]
    most, total = max(own.values()), sum(sizes)
    copies = ranks // NODE if setup == "HSDP" else 1
    numbers = received(setup, ranks, copies) * total / ranks
    if setup == "DDP":  # padded, or summed with zeros
        numbers = (ranks - 1) * most if ranks * most <= 2 * total else 2 * (1 - 1 / ranks) * total
    together = most if setup == "DDP" else max(*sizes, min(most, MOST_TOGETHER))
    return Load(max(loads.values()), sum(loads.values()) / ranks, 4 * numbers, 4 * together)


def _rows() -> Iterator[list[str]]:
    for name, model in MODELS.items():
        step = 6 * model.parameters * TOKENS
        for setup, ranks in PLACES:
            if setup == "DDP" and model.parameters > LARGEST:
                continue
            found, without = load(model, setup, ranks), _without(model, setup, ranks)
            yield [
                name, setup, f"{ranks:,}", f"{found.operations / step:.1%}",
                f"{found.operations / found.mean:.2f}", size(found.received), size(without),
                f"{found.received / without:.1%}", size(found.whole),
            ]  # fmt: skip


def by_formula() -> str:
    """Return the table of what larger models and more ranks take."""
    titles = ["model", "set-up", "ranks W", "operations: corrections / full step",
              "busiest rank / mean", "received: corrections", "received: full step without",
              "corrections / full step", "whole matrices at a time"]  # fmt: skip
    return markdown(titles, list(_rows()))


def size(number: float) -> str:
    """Return bytes in words."""
    scale, unit = (1e9, "GB") if number >= 1e9 else (1e6, "MB")
    return f"{number / scale:,.{0 if number >= 10 * scale else 1}f} {unit}"
