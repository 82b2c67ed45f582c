"""Brings each matrix together on the rank that owns it, and distributes what it finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.policy.budget import deal
from hybrid_predict.ranks import processes, shards
from hybrid_predict.tensors import lists

MOST_TOGETHER = 2**26
"""Elements of sharded matrices that are whole on one rank at a time; a larger one comes alone."""


def owners(tensors: Sequence[Tensor], work: Sequence[int], first: int) -> list[int]:
    """Return the rank that owns each tensor, by counted work; see `policy.budget.deal`."""
    found = [0] * len(tensors)
    teams: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for k, tensor in enumerate(tensors):
        teams[shards.team(tensor)].append(k)
    for team, members in teams.items():
        dealt = deal([work[k] for k in members], len(team), first)
        for k, position in zip(members, dealt, strict=True):
            found[k] = team[position]
    return found


def check_equal(tensors: Sequence[Tensor]) -> None:
    """Raise `UnsupportedSetupError` on all ranks unless unsharded tensors are equal on them."""
    plain = [t.detach().contiguous() for t in tensors if not shards.is_sharded(t)]
    if plain:  # sums of bytes are exact in any order
        processes.check_same([int(x.view(torch.uint8).sum(dtype=torch.int64)) for x in plain])


def fetch(array: Tensor, owner: int, tensor: Tensor) -> Tensor:
    """Return what the owner of a parameter keeps about it; every rank of its team has to call it.

    Elsewhere ``array`` is on the meta device.
    """
    team = shards.team(tensor)
    if len(team) == 1:
        return array
    device = shards.local(tensor).device
    value = torch.empty_like(array, device=device) if array.is_meta else array.to(device)
    return processes.broadcast(value, owner, processes.group_of(team))


@final
@dataclass(frozen=True)
class Exchange:
    """Tensors of one type and team that are whole on their owners at the same time."""

    positions: list[int]  # among all tensors
    tensors: list[Tensor]  # the parameters
    owners: list[int]  # the rank that owns each
    like: Tensor  # of the type and device in which they are exchanged

    @property
    def own(self) -> list[int]:
        """Positions of the tensors that this rank owns."""
        me = processes.rank()
        return [k for k, owner in zip(self.positions, self.owners, strict=True) if owner == me]

    def whole(self, part: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns from the parts of all ranks, by position."""
        if not shards.is_sharded(self.tensors[0]):
            return [part(k) for k in self.own]
        team = shards.team(self.tensors[0])
        me = team.index(processes.rank())
        sent: list[list[Tensor]] = [[] for _ in team]
        targets: list[list[Tensor]] = [[] for _ in team]
        wholes = []
        for k, tensor, owner in zip(self.positions, self.tensors, self.owners, strict=True):
            sends = shards.sends(tensor, team.index(owner))
            if sends[me]:
                sent[team.index(owner)].append(lists.cast(part(k), self.like.dtype))
            if owner == processes.rank():
                wholes.append(self.like.new_empty(shards.form(tensor).shape))
                for j, target in enumerate(shards.parts(wholes[-1], tensor)):
                    targets[j] += [target] if sends[j] else []
        processes.exchange(sent, targets, self.like, processes.group_of(team))
        return wholes

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all tensors, from the whole ones of their owners."""
        if not shards.is_sharded(self.tensors[0]):
            return self._broadcast(wholes)
        team = shards.team(self.tensors[0])
        own = iter(wholes)
        sent: list[list[Tensor]] = [[] for _ in team]
        targets: list[list[Tensor]] = [[] for _ in team]
        for tensor, owner in zip(self.tensors, self.owners, strict=True):
            targets[team.index(owner)].append(self.like.new_empty(shards.local(tensor).shape))
            if owner == processes.rank():
                whole = lists.cast(next(own), self.like.dtype)
                for j, part in enumerate(shards.parts(whole, tensor)):
                    sent[j].append(part)
        processes.exchange(sent, targets, self.like, processes.group_of(team))
        found = [iter(each) for each in targets]
        return [next(found[team.index(owner)]) for owner in self.owners]

    def _broadcast(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return all whole tensors, from those that this rank owns, by one broadcast per owner."""
        found = list(self.tensors)
        group = processes.group_of(shards.team(self.tensors[0]))
        for owner in sorted({*self.owners}):
            members = [at for at, each in enumerate(self.owners) if each == owner]
            sizes = [self.tensors[at].numel() for at in members]
            if owner == processes.rank():
                packed = torch.cat([lists.cast(x, self.like.dtype).reshape(-1) for x in wholes])
            else:
                packed = self.like.new_empty(sum(sizes))
            packed = processes.broadcast(packed, owner, group)
            for at, value in zip(members, packed.split(sizes), strict=True):
                found[at] = value.view(self.tensors[at].shape)
        return found


def exchanges(
    tensors: Sequence[Tensor], owners: Sequence[int], like: Sequence[Tensor]
) -> list[Exchange]:
    """Divide tensors into those that are exchanged together.

    Sharded ones come in rounds, so that a rank holds few whole tensors at a time. What is exchanged
    has the devices of ``like``, their averaged gradients, and at least 32 bits.
    """
    together: dict[Any, list[int]] = defaultdict(list)
    for k, (tensor, x) in enumerate(zip(tensors, like, strict=True)):
        key = shards.team(tensor), shards.is_sharded(tensor), lists.widest([x]), x.device
        together[key].append(k)
    found = []
    for (_, sharded, dtype, device), members in together.items():
        sizes = [shards.form(tensors[k]).numel() for k in members]
        most = MOST_TOGETHER if sharded else sum(sizes)
        for part in rounds(sizes, [owners[k] for k in members], most):
            chosen = [members[k] for k in part]
            each = [tensors[k] for k in chosen]
            own = [owners[k] for k in chosen]
            found.append(Exchange(chosen, each, own, torch.empty(0, dtype=dtype, device=device)))
    return found


def rounds(sizes: Sequence[int], owners: Sequence[int], most: int) -> list[list[int]]:
    """Divide tensors into rounds in which no owner has over ``most`` elements, or one tensor."""
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
