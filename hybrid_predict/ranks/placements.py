"""How ranks hold a sharded tensor: which part each one has, and how parts become whole."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.ranks.messages import exchange
from hybrid_predict.ranks.processes import rank

Box = tuple[tuple[int, int], ...]
"""Where a part begins and ends in each dimension."""


@final
@dataclass(frozen=True)
class Placement:
    """How the ranks of a team hold a tensor."""

    shape: tuple[int, ...]  # of the whole tensor
    team: tuple[int, ...]  # ranks with parts or copies
    boxes: tuple[Box, ...]  # the part of each of them
    shards: int  # number of parts; several ranks can hold the same
    layout: str  # describes it in the same way on all ranks
    flat: bool = False  # whether boxes are those of the flattened tensor

    def parts(self, whole: Tensor) -> list[Tensor]:
        """Return the part of each rank of the team, as views of a whole tensor."""
        entries = whole.reshape(-1) if self.flat else whole
        return [entries[tuple(slice(*ends) for ends in box)] for box in self.boxes]

    def sends(self, to: int) -> list[bool]:
        """Return for each rank of the team whether it sends its part to member ``to`` of it.

        Of several ranks that hold the same part, the one in the copy of that member does.
        """
        seen = Counter[Box]()
        copies = []
        for box in self.boxes:
            copies.append(seen[box])
            seen[box] += 1
        pairs = zip(copies, self.boxes, strict=True)
        return [copy == min(copies[to], seen[box] - 1) for copy, box in pairs]

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor from the parts; every rank of the team has to call it."""
        whole = part.new_empty(self.shape)
        if self.shards == 1:
            return part.view(whole.shape)
        me = self.team.index(rank())
        sent = [[part] if self.sends(k)[me] else [] for k in range(len(self.team))]
        pairs = zip(self.parts(whole), self.sends(me), strict=True)
        targets = [[target] if given else [] for target, given in pairs]
        exchange(sent, targets, part, self.team)
        return whole

    def cut(self, whole: Tensor, device: torch.device) -> Tensor:
        """Return a copy of this rank's part, without communication."""
        part = self.parts(whole)[self.team.index(rank())]
        return part.to(device, copy=True).contiguous()


def of_dtensor(tensor: Any) -> Placement:
    """Return how the ranks of its mesh hold a DTensor."""
    mesh = tensor.device_mesh.mesh
    team = tuple(mesh.flatten().tolist())
    return _divided(tuple(tensor.shape), tuple(mesh.shape), team, tuple(tensor.placements))


@lru_cache(maxsize=1024)
def _divided(
    shape: tuple[int, ...], mesh: tuple[int, ...], team: tuple[int, ...], ways: tuple[Any, ...]
) -> Placement:
    # All parts along a dimension but the last are equally long.
    boxes: list[Box] = [tuple((0, n) for n in shape)]
    for count, way in zip(mesh, ways, strict=True):
        cut = []
        for box in boxes:
            if not way.is_shard():
                cut += [box] * count
                continue
            d = way.dim
            start, stop = box[d]
            most = -(-(stop - start) // count)
            ends = [min(start + most * k, stop) for k in range(count + 1)]
            cut += [(*box[:d], each, *box[d + 1 :]) for each in pairwise(ends)]
        boxes = cut
    shards = math.prod(n for n, way in zip(mesh, ways, strict=True) if way.is_shard())
    return Placement(shape, team, tuple(boxes), shards, f"{shape} by {ways} on {mesh}")
