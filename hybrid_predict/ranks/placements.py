"""How ranks hold a sharded tensor: which part each one has, and what they send to make it whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any, final

import torch
from torch import Tensor
from torch import distributed as dist

from hybrid_predict.ranks.processes import rank, reducible, size

Box = tuple[tuple[int, int], ...]
"""Where a part begins and ends in each dimension."""


@final
@dataclass(frozen=True)
class Placement:
    """How the ranks of a team hold a tensor."""

    shape: tuple[int, ...]  # of the whole tensor
    boxes: dict[int, Box]  # the part of each rank of the team
    shards: int  # number of parts; several ranks can hold the same
    layout: str  # describes it in the same way on all ranks
    # Of a parameter of FSDP1, whose parts are ranges of the flat entries:
    form: Tensor | None = None  # of the whole one's shape, type and device, without memory
    has_gradient: Callable[[], bool] | None = None  # alike on all ranks, also without entries

    @property
    def team(self) -> tuple[int, ...]:
        """The ranks that hold parts or copies."""
        return tuple(self.boxes)

    def parts(self, whole: Tensor) -> dict[int, Tensor]:
        """Return the part of each rank, as views of a whole tensor."""
        entries = whole if self.form is None else whole.reshape(-1)
        cuts = {at: tuple(slice(*ends) for ends in box) for at, box in self.boxes.items()}
        return {at: entries[cut] for at, cut in cuts.items()}

    def senders(self, to: int) -> set[int]:
        """Return the ranks that send their parts to a rank.

        Of several ranks that hold the same part, the one in the copy of that rank does.
        """
        holders: dict[Box, list[int]] = defaultdict(list)
        for at, box in self.boxes.items():
            holders[box].append(at)
        copy = holders[self.boxes[to]].index(to)
        return {held[min(copy, len(held) - 1)] for held in holders.values()}

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor from the parts; every rank of the team has to call it."""
        whole = part.new_empty(self.shape)
        if self.shards == 1:
            return part.view(whole.shape)
        sent = [(to, part) for to in self.team if rank() in self.senders(to)]
        senders = self.senders(rank())
        targets = [(at, target) for at, target in self.parts(whole).items() if at in senders]
        exchange(sent, targets, part, self.team)
        return whole

    def cut(self, whole: Tensor, device: torch.device) -> Tensor:
        """Return a copy of this rank's part, without communication."""
        part = self.parts(whole.reshape(self.shape))[rank()]
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
    shards = 1
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
        shards *= count if way.is_shard() else 1
    layout = f"{shape} by {ways} on {mesh}"
    return Placement(shape, dict(zip(team, boxes, strict=True)), shards, layout)


def broadcast(value: Tensor, source: int, team: tuple[int, ...]) -> Tensor:
    """Return the value of one rank; every rank of the team has to call it."""
    sent = reducible(value.contiguous())
    dist.broadcast(sent, source, group=_group_of(team))
    return sent.to(value.device)


def exchange(
    sent: Sequence[tuple[int, Tensor]],
    targets: Sequence[tuple[int, Tensor]],
    like: Tensor,
    team: tuple[int, ...],
) -> None:
    """Send tensors to ranks of a team, and fill targets with those that ranks send, in order.

    They have the type of ``like``, and are on its device; every rank of the team has to call it.
    """
    given = sorted(sent, key=itemgetter(0))
    wanted = sorted(targets, key=itemgetter(0))
    packed = reducible(torch.cat([like.new_empty(0), *(x.reshape(-1) for _, x in given)]))
    counts = []
    for pairs in (wanted, given):
        sizes = Counter[int]()
        for at, x in pairs:
            sizes[at] += x.numel()
        counts.append([sizes[at] for at in sorted(team)])
    received = packed.new_empty(sum(counts[0]))
    dist.all_to_all_single(received, packed, counts[0], counts[1], group=_group_of(team))
    values = received.to(like.device).split([x.numel() for _, x in wanted])
    for (_, target), value in zip(wanted, values, strict=True):
        target.copy_(value.view(target.shape))


def _group_of(team: tuple[int, ...]) -> Any:
    """Return the process group of a team, None for that of all; all of the team have to call it."""
    return None if len(team) == size() else _new_group(team, dist.group.WORLD)


@lru_cache(maxsize=64)
def _new_group(team: tuple[int, ...], world: Any) -> Any:
    return dist.new_group(list(team), use_local_synchronization=True)
