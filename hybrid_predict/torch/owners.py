"""Brings each matrix together on the rank that owns it, and distributes what it finds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.rules.budget import as_matrix
from hybrid_predict.rules.owners import MOST_TOGETHER, deal, rounds
from hybrid_predict.torch import lists, ranks, shards

_Box = tuple[slice, ...]


@final
@dataclass(frozen=True)
class Layout:
    """Which part of a tensor each rank of a team holds.

    Args:
        team: The ranks that hold parts or copies of it.
        boxes: The part of each rank of the team; None if all of them hold all of it.
        copies: Number of the copy to which the part of each rank belongs.
        group: The process group of the team; None for that of all ranks.
    """

    team: tuple[int, ...]
    boxes: tuple[_Box, ...] | None = None
    copies: tuple[int, ...] = ()
    group: Any = None


def layout(tensor: Any) -> Layout:
    """Return which part of a tensor each rank holds."""
    if not shards.is_sharded(tensor):
        return Layout(tuple(range(ranks.size())))
    mesh = tensor.device_mesh
    team, boxes, copies = _parts(tensor.shape, mesh, tensor.placements)
    return Layout(team, boxes, copies, mesh.get_group() if mesh.ndim == 1 else ranks.group_of(team))


@lru_cache(maxsize=1024)
def _parts(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[_Box, ...], tuple[int, ...]]:
    sizes = tuple(mesh.mesh.shape)
    places = list(itertools.product(*map(range, sizes)))
    copies = [
        tuple(c for c, p in zip(place, placements, strict=True) if not p.is_shard())
        for place in places
    ]
    numbers = {copy: n for n, copy in enumerate(dict.fromkeys(copies))}
    boxes = tuple(_box(shape, sizes, place, placements) for place in places)
    return tuple(mesh.mesh.flatten().tolist()), boxes, tuple(numbers[copy] for copy in copies)


def _box(
    shape: Sequence[int], sizes: Sequence[int], place: Sequence[int], placements: Sequence[Any]
) -> _Box:
    """Return the part of one rank: along each dimension all parts but the last are equally long."""
    starts, lengths = [0] * len(shape), list(shape)
    for count, number, placement in zip(sizes, place, placements, strict=True):
        if placement.is_shard():
            d = placement.dim
            most = -(-lengths[d] // count)
            start = min(number * most, lengths[d])
            starts[d] += start
            lengths[d] = min(most, lengths[d] - start)
    return tuple(slice(a, a + n) for a, n in zip(starts, lengths, strict=True))


def owners(tensors: Sequence[Tensor], work: Sequence[int], first: int) -> list[int]:
    """Return the rank that owns each tensor, by counted work; see `rules.owners.deal`."""
    found = [0] * len(tensors)
    teams: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for k, tensor in enumerate(tensors):
        teams[layout(tensor).team].append(k)
    for team, members in teams.items():
        dealt = deal([work[k] for k in members], len(team), first)
        for k, position in zip(members, dealt, strict=True):
            found[k] = team[position]
    return found


def check_equal(tensors: Sequence[Tensor]) -> None:
    """Check that unsharded tensors are equal on all ranks; every rank has to call it.

    Raises:
        UnsupportedSetupError: On every rank, if they differ: an owner would correct the others.
    """
    plain = [t.detach().contiguous() for t in tensors if not shards.is_sharded(t)]
    if plain:  # sums of bytes are exact in any order
        ranks.check_same([int(x.view(torch.uint8).sum(dtype=torch.int64)) for x in plain])


def stays(array: Tensor, tensor: Tensor) -> bool:
    """Return whether only the owner of a parameter has this array about it.

    Small arrays about unsharded matrices are kept alike on all ranks, so that each rank can save
    them by itself.
    """
    return shards.is_sharded(tensor) or array.numel() > sum(as_matrix(tensor.shape))


def fetch(array: Tensor, owner: int, tensor: Tensor) -> Tensor:
    """Return what the owner of a parameter keeps about it; every rank of its team has to call it.

    Elsewhere ``array`` is on the meta device.
    """
    place = layout(tensor)
    if len(place.team) == 1:
        return array
    device = shards.local(tensor).device
    value = torch.empty_like(array, device=device) if array.is_meta else array.to(device)
    return ranks.broadcast(value, owner, place.group)


@final
class Exchange:
    """Tensors of one type that are whole on their owners at the same time.

    Args:
        positions: Their positions.
        layouts: Which part of each tensor each rank holds; the team is the same for all.
        shapes: Their full shapes.
        owners: The rank that owns each.
        like: A tensor of the type and device in which they are exchanged.
    """

    def __init__(
        self,
        positions: list[int],
        layouts: list[Layout],
        shapes: list[tuple[int, ...]],
        owners: list[int],
        like: Tensor,
    ) -> None:
        self.positions, self._layouts, self._shapes = positions, layouts, shapes
        self._like, self._team = like, layouts[0].team
        self._sharded, self._group = layouts[0].boxes is not None, layouts[0].group
        self._me = self._team.index(ranks.rank())
        self._of: dict[int, list[int]] = {rank: [] for rank in self._team}
        for k, owner in enumerate(owners):
            self._of[owner].append(k)
        self._mine = self._of[ranks.rank()]

    @property
    def own(self) -> list[int]:
        """Positions of the tensors that this rank owns."""
        return [self.positions[k] for k in self._mine]

    def whole(self, part: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns from the parts of all ranks, by position."""
        if not self._sharded:
            return [part(k) for k in self.own]
        sent = [
            [
                lists.cast(part(self.positions[k]), self._like.dtype)
                for k in self._of[rank]
                if self._gives(k, self._me, j)
            ]
            for j, rank in enumerate(self._team)
        ]
        boxes = [
            [(k, self._box(k, j)) for k in self._mine if self._gives(k, j, self._me)]
            for j in range(len(self._team))
        ]
        sizes = [[_elements(box) for _, box in each] for each in boxes]
        received = ranks.exchange(sent, list(map(sum, sizes)), self._like, self._group)
        wholes = {k: self._like.new_empty(self._shapes[k]) for k in self._mine}
        for each, lengths, values in zip(boxes, sizes, received, strict=True):
            for (k, box), value in zip(each, values.split(lengths), strict=True):
                target = wholes[k][box]
                target.copy_(value.view(target.shape))
        return list(wholes.values())

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all tensors, from the whole ones of their owners."""
        own = [lists.cast(x, self._like.dtype) for x in wholes]
        boxes = [self._box(k, self._me) for k in range(len(self.positions))]
        sizes = [[_elements(boxes[k]) for k in each] for each in self._of.values()]
        lengths = list(map(sum, sizes))
        if self._sharded:
            rows = list(zip(self._mine, own, strict=True))
            sent = [[x[self._box(k, j)] for k, x in rows] for j in range(len(self._team))]
            received = ranks.exchange(sent, lengths, self._like, self._group)
        else:
            received = ranks.share(own, self._me, lengths, self._like)
        parts = [self._like] * len(boxes)
        for each, split, values in zip(self._of.values(), sizes, received, strict=True):
            for k, value in zip(each, values.split(split), strict=True):
                parts[k] = value.view([s.stop - s.start for s in boxes[k]])
        return parts

    def spread(self, arrays: Sequence[Sequence[Tensor]]) -> None:
        """Copy arrays about each tensor from its owner to the other ranks."""
        targets = [[x for k in each for x in arrays[k]] for each in self._of.values()]
        sizes = [[x.numel() for x in each] for each in targets]
        lengths = list(map(sum, sizes))
        if not any(lengths):
            return
        own = [lists.cast(x, self._like.dtype) for x in targets[self._me]]
        received = ranks.share(own, self._me, lengths, self._like)
        for each, split, values in zip(targets, sizes, received, strict=True):
            for target, value in zip(each, values.split(split), strict=True):
                target.copy_(value.view(target.shape))

    def _gives(self, k: int, source: int, target: int) -> bool:
        """Return whether one rank of the team sends its part of tensor k to another."""
        copies = self._layouts[k].copies
        return copies[source] == copies[target]

    def _box(self, k: int, member: int) -> _Box:
        boxes = self._layouts[k].boxes
        return tuple(slice(0, n) for n in self._shapes[k]) if boxes is None else boxes[member]


def exchanges(
    tensors: Sequence[Tensor], owners: Sequence[int], like: Sequence[Tensor]
) -> list[Exchange]:
    """Divide tensors into those that are exchanged together.

    Sharded ones come in rounds, so that a rank holds few whole tensors at a time.

    Args:
        tensors: The parameters.
        owners: The rank that owns each.
        like: Their averaged gradients; what is exchanged has the same device and at least 32 bits.
    """
    together: dict[Any, list[int]] = defaultdict(list)
    layouts = [layout(tensor) for tensor in tensors]
    for k, (place, x) in enumerate(zip(layouts, like, strict=True)):
        together[place.team, place.boxes is None, lists.widest([x]), x.device].append(k)
    found = []
    for (_, replicated, dtype, device), members in together.items():
        most = sum(tensors[k].numel() for k in members) if replicated else MOST_TOGETHER
        sizes, own = [tensors[k].numel() for k in members], [owners[k] for k in members]
        for part in rounds(sizes, own, most):
            chosen = [members[k] for k in part]
            found.append(
                Exchange(
                    chosen,
                    [layouts[k] for k in chosen],
                    [tuple(tensors[k].shape) for k in chosen],
                    [owners[k] for k in chosen],
                    torch.empty(0, dtype=dtype, device=device),
                )
            )
    return found


def _elements(box: _Box) -> int:
    return math.prod(s.stop - s.start for s in box)
