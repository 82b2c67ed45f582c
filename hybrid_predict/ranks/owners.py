"""Brings each matrix together on the rank that owns it, and distributes what it finds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.policy.budget import deal
from hybrid_predict.ranks import shards
from hybrid_predict.ranks.placements import Placement, broadcast, exchange
from hybrid_predict.ranks.processes import check_same, rank, size
from hybrid_predict.tensors import lists

MOST_TOGETHER = 2**26
"""Elements of sharded matrices that are whole on one rank at a time; a larger one comes alone."""


@final
@dataclass(frozen=True)
class Owners:
    """The ranks that own some tensors; the tensors themselves may be replaced by others like them.

    Every rank of a tensor's team has to call each method.
    """

    ranks: list[int]

    @classmethod
    def by_work(cls, tensors: Sequence[Tensor], work: Sequence[int], first: int) -> Owners:
        """Choose owners by counted work; ``first`` comes first among ranks with equal work."""
        found = [0] * len(tensors)
        teams: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for k, tensor in enumerate(tensors):
            teams[_team(shards.placement(tensor))].append(k)
        for team, members in teams.items():
            dealt = deal([work[k] for k in members], len(team))
            for k, place in zip(members, dealt, strict=True):
                found[k] = team[(place + first) % len(team)]
        return cls(found)

    def check_equal(self, tensors: Sequence[Tensor]) -> None:
        """Raise `UnsupportedSetupError` on all ranks unless unsharded tensors are equal on them."""
        plain = [t.detach().contiguous() for t in tensors if shards.placement(t) is None]
        if plain:  # sums of bytes are exact in any order
            check_same([int(x.view(torch.uint8).sum(dtype=torch.int64)) for x in plain])

    def fetch(self, array: Tensor, k: int, tensor: Tensor) -> Tensor:
        """Return what the owner of tensor k keeps about it; elsewhere it is on the meta device."""
        team = _team(shards.placement(tensor))
        if len(team) == 1:
            return array
        device = shards.local(tensor).device
        value = torch.empty_like(array, device=device) if array.is_meta else array.to(device)
        return broadcast(value, self.ranks[k], team)

    def exchanges(
        self, members: Sequence[int], tensors: Sequence[Tensor], like: Sequence[Tensor]
    ) -> list[Exchange]:
        """Divide the tensors of these numbers into those that are exchanged together.

        Sharded ones come in rounds, so that a rank holds few whole tensors at a time. What is
        exchanged has the devices of ``like``, averaged gradients, and at least 32 bits.
        """
        owners = [self.ranks[k] for k in members]
        placements = [shards.placement(tensor) for tensor in tensors]
        together: dict[Any, list[int]] = defaultdict(list)
        rounds = Counter[Any]()
        filled = Counter[Any]()
        for k, (held, owner, x) in enumerate(zip(placements, owners, like, strict=True)):
            kind = _team(held), held is not None, lists.widest([x]), x.device
            elements = 0 if held is None else math.prod(held.shape)
            if filled[kind, owner] and filled[kind, owner] + elements > MOST_TOGETHER:
                rounds[kind, owner] += 1
                filled[kind, owner] = 0
            filled[kind, owner] += elements
            together[kind, rounds[kind, owner]].append(k)
        found = []
        for ((team, _, dtype, device), _), chosen in together.items():
            each = [tensors[k] for k in chosen]
            own = [owners[k] for k in chosen]
            known = [held for held in (placements[k] for k in chosen) if held is not None]
            empty = torch.empty(0, dtype=dtype, device=device)
            found.append(Exchange(chosen, each, own, team, known, empty))
        return found


def _team(at: Placement | None) -> tuple[int, ...]:
    return tuple(range(size())) if at is None else at.team


@final
@dataclass(frozen=True)
class Exchange:
    """Tensors of one type and team that are whole on their owners at the same time."""

    positions: list[int]  # among all tensors
    tensors: list[Tensor]  # the parameters
    owners: list[int]  # the rank that owns each
    team: tuple[int, ...]  # the ranks that hold parts or copies of them
    placements: list[Placement]  # of each tensor; empty if they are not sharded
    like: Tensor  # of the type and device in which they are exchanged

    @property
    def own(self) -> list[int]:
        """Positions of the tensors that this rank owns."""
        me = rank()
        return [k for k, owner in zip(self.positions, self.owners, strict=True) if owner == me]

    def whole(self, part: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns from the parts of all ranks, by position."""
        if not self.placements:
            return [part(k) for k in self.own]
        sent: list[tuple[int, Tensor]] = []
        targets: list[tuple[int, Tensor]] = []
        wholes = []
        for k, held, owner in zip(self.positions, self.placements, self.owners, strict=True):
            senders = held.senders(owner)
            if rank() in senders:
                sent.append((owner, lists.cast(part(k), self.like.dtype)))
            if rank() == owner:
                whole = self.like.new_empty(held.shape)
                targets += [(at, x) for at, x in held.parts(whole).items() if at in senders]
                wholes.append(whole)
        exchange(sent, targets, self.like, self.team)
        return wholes

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all tensors, from the whole ones of their owners."""
        if not self.placements:
            return self._broadcast(wholes)
        pairs = zip(self.owners, self.tensors, strict=True)
        targets = [(at, self.like.new_empty(shards.local(x).shape)) for at, x in pairs]
        own = [held for held, at in zip(self.placements, self.owners, strict=True) if at == rank()]
        sent: list[tuple[int, Tensor]] = []
        for held, whole in zip(own, wholes, strict=True):
            sent += held.parts(lists.cast(whole, self.like.dtype)).items()
        exchange(sent, targets, self.like, self.team)
        return [target for _, target in targets]

    def _broadcast(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return all whole tensors, from those that this rank owns, by one broadcast per owner."""
        found: dict[int, Tensor] = {}
        for owner in sorted({*self.owners}):
            members = [k for k, each in enumerate(self.owners) if each == owner]
            sizes = [self.tensors[k].numel() for k in members]
            if owner == rank():
                packed = torch.cat([lists.cast(x, self.like.dtype).reshape(-1) for x in wholes])
            else:
                packed = self.like.new_empty(sum(sizes))
            packed = broadcast(packed, owner, self.team)
            found.update(zip(members, packed.split(sizes), strict=True))
        return [found[k].view(x.shape) for k, x in enumerate(self.tensors)]
