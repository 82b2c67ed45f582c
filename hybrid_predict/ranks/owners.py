"""Brings each matrix together on the rank that owns it, and distributes what it finds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.policy.budget import deal
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.layouts import Layout, layout
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.shapes import as_matrix

MOST_TOGETHER = 2**26
"""Elements of sharded matrices that are whole on one rank at a time; a larger one comes alone."""

_Shapes = Sequence[Sequence[Sequence[int]]]
_Tensors = Sequence[Sequence[Tensor]]


def owners(tensors: Sequence[Tensor], work: Sequence[int], first: int) -> list[int]:
    """Return the rank that owns each tensor, by counted work; see `policy.budget.deal`."""
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
        processes.check_same([int(x.view(torch.uint8).sum(dtype=torch.int64)) for x in plain])


def stays(array: Tensor, tensor: Tensor) -> bool:
    """Return whether only the owner of a parameter has this array about it.

    Small arrays about unsharded matrices are kept alike on all ranks, so that each rank can save
    them by itself.
    """
    return shards.is_sharded(tensor) or array.numel() > sum(as_matrix(shards.form(tensor).shape))


def fetch(array: Tensor, owner: int, tensor: Tensor) -> Tensor:
    """Return what the owner of a parameter keeps about it; every rank of its team has to call it.

    Elsewhere ``array`` is on the meta device.
    """
    place = layout(tensor)
    if len(place.team) == 1:
        return array
    device = shards.local(tensor).device
    value = torch.empty_like(array, device=device) if array.is_meta else array.to(device)
    return processes.broadcast(value, owner, place.group)


@final
class Exchange:
    """Tensors of one type that are whole on their owners at the same time.

    Args:
        positions: Their positions.
        layouts: Which part of each tensor each rank holds; the team is the same for all.
        owners: The rank that owns each.
        like: A tensor of the type and device in which they are exchanged.
    """

    def __init__(
        self, positions: list[int], layouts: list[Layout], owners: list[int], like: Tensor
    ) -> None:
        self.positions = positions
        self._layouts = layouts
        self._like = like
        self._team = layouts[0].team
        self._group = layouts[0].group
        self._sharded = layouts[0].boxes is not None
        self._me = self._team.index(processes.rank())
        self._of: dict[int, list[int]] = {rank: [] for rank in self._team}
        for k, owner in enumerate(owners):
            self._of[owner].append(k)
        self._mine = self._of[processes.rank()]

    @property
    def own(self) -> list[int]:
        """Positions of the tensors that this rank owns."""
        return [self.positions[k] for k in self._mine]

    def whole(self, part: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns from the parts of all ranks, by position."""
        if not self._sharded:
            return [part(k) for k in self.own]
        places = self._layouts
        members = range(len(self._team))
        sent = [
            [
                lists.cast(part(self.positions[k]), self._like.dtype)
                for k in self._of[rank]
                if places[k].gives(self._me, j)
            ]
            for j, rank in enumerate(self._team)
        ]
        wholes = {k: self._like.new_empty(places[k].shape) for k in self._mine}
        targets = [
            [places[k].part(x, j) for k, x in wholes.items() if places[k].gives(j, self._me)]
            for j in members
        ]
        _fill(targets, self._exchanged(sent, [[x.shape for x in each] for each in targets]))
        return list(wholes.values())

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all tensors, from the whole ones of their owners."""
        own = [lists.cast(x, self._like.dtype) for x in wholes]
        shapes = [[self._layouts[k].part_shape(self._me) for k in of] for of in self._of.values()]
        if self._sharded:
            rows = list(zip(self._mine, own, strict=True))
            sent = [[self._layouts[k].part(x, j) for k, x in rows] for j in range(len(self._team))]
            received = self._exchanged(sent, shapes)
        else:
            received = self._shared(own, shapes)
        pairs = zip(self._of.values(), received, strict=True)
        parts = {k: x for of, each in pairs for k, x in zip(of, each, strict=True)}
        return [parts[k] for k in range(len(parts))]

    def spread(self, arrays: Sequence[Sequence[Tensor]]) -> None:
        """Copy arrays about each tensor from its owner to the other ranks."""
        targets = [[x for k in each for x in arrays[k]] for each in self._of.values()]
        if any(x.numel() for each in targets for x in each):
            own = [lists.cast(x, self._like.dtype) for x in targets[self._me]]
            _fill(targets, self._shared(own, [[x.shape for x in each] for each in targets]))

    def _exchanged(self, sent: _Tensors, shapes: _Shapes) -> _Tensors:
        """Send tensors to each rank of the team, and return those of these shapes from each."""
        received = processes.exchange(sent, _lengths(shapes), self._like, self._group)
        return _divided(received, shapes)

    def _shared(self, own: Sequence[Tensor], shapes: _Shapes) -> _Tensors:
        """Return the tensors of each rank, which have these shapes."""
        return _divided(processes.share(own, self._me, _lengths(shapes), self._like), shapes)


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
        sizes = [math.prod(layouts[k].shape) for k in members]
        most = sum(sizes) if replicated else MOST_TOGETHER
        own = [owners[k] for k in members]
        for part in rounds(sizes, own, most):
            chosen = [members[k] for k in part]
            found.append(
                Exchange(
                    chosen,
                    [layouts[k] for k in chosen],
                    [owners[k] for k in chosen],
                    torch.empty(0, dtype=dtype, device=device),
                )
            )
    return found


def _lengths(shapes: _Shapes) -> list[int]:
    return [sum(map(math.prod, each)) for each in shapes]


def _divided(received: Sequence[Tensor], shapes: _Shapes) -> _Tensors:
    """Divide the flat elements from each rank into tensors."""
    return [
        [x.view(s) for x, s in zip(row.split(list(map(math.prod, each))), each, strict=True)]
        for row, each in zip(received, shapes, strict=True)
    ]


def _fill(targets: _Tensors, sources: _Tensors) -> None:
    for each, values in zip(targets, sources, strict=True):
        for target, value in zip(each, values, strict=True):
            target.copy_(value)


def rounds(sizes: Sequence[int], owners: Sequence[int], most: int) -> list[list[int]]:
    """Divide tensors into rounds in which no owner has more than ``most`` elements, or one tensor.

    Args:
        sizes: Elements of each tensor.
        owners: Rank that owns it.
        most: Most elements of one owner in a round.
    """
    parts: list[list[int]] = []
    number = Counter[int]()
    filled = Counter[int]()
    for k, (size, owner) in enumerate(zip(sizes, owners, strict=True)):
        if filled[owner] and filled[owner] + size > most:
            number[owner] += 1
            filled[owner] = 0
        filled[owner] += size
        parts += [[] for _ in range(number[owner] + 1 - len(parts))]
        parts[number[owner]].append(k)
    return parts
