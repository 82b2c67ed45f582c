"""Brings each matrix together on the rank that owns it, and distributes what it finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.policy.budget import deal
from hybrid_predict.ranks import messages, processes, shards
from hybrid_predict.ranks.placements import Placement
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
            processes.check_same([int(x.view(torch.uint8).sum(dtype=torch.int64)) for x in plain])

    def fetch(self, array: Tensor, k: int, tensor: Tensor) -> Tensor:
        """Return what the owner of tensor k keeps about it; elsewhere it is on the meta device."""
        team = _team(shards.placement(tensor))
        if len(team) == 1:
            return array
        device = shards.local(tensor).device
        value = torch.empty_like(array, device=device) if array.is_meta else array.to(device)
        return messages.broadcast(value, self.ranks[k], team)

    def exchanges(
        self, members: Sequence[int], tensors: Sequence[Tensor], like: Sequence[Tensor]
    ) -> list[Exchange]:
        """Divide the tensors of these numbers into those that are exchanged together.

        Sharded ones come in rounds, so that a rank holds few whole tensors at a time. What is
        exchanged has the devices of ``like``, averaged gradients, and at least 32 bits.
        """
        owners = [self.ranks[k] for k in members]
        together: dict[Any, list[int]] = defaultdict(list)
        held = [shards.placement(tensor) for tensor in tensors]
        for k, (at, x) in enumerate(zip(held, like, strict=True)):
            together[_team(at), at is not None, lists.widest([x]), x.device].append(k)
        found = []
        for (team, sharded, dtype, device), positions in together.items():
            sizes = [shards.form(tensors[k]).numel() for k in positions]
            most = MOST_TOGETHER if sharded else sum(sizes)
            for part in rounds(sizes, [owners[k] for k in positions], most):
                chosen = [positions[k] for k in part]
                each = [tensors[k] for k in chosen]
                own = [owners[k] for k in chosen]
                known = [at for at in (held[k] for k in chosen) if at is not None]
                empty = torch.empty(0, dtype=dtype, device=device)
                found.append(Exchange(chosen, each, own, team, known, empty))
        return found


def _team(at: Placement | None) -> tuple[int, ...]:
    return tuple(range(processes.size())) if at is None else at.team


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
        me = processes.rank()
        return [k for k, owner in zip(self.positions, self.owners, strict=True) if owner == me]

    def whole(self, part: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the tensors that this rank owns from the parts of all ranks, by position."""
        if not self.placements:
            return [part(k) for k in self.own]
        team = self.team
        me = team.index(processes.rank())
        sent: list[list[Tensor]] = [[] for _ in team]
        targets: list[list[Tensor]] = [[] for _ in team]
        wholes = []
        for k, at, owner in zip(self.positions, self.placements, self.owners, strict=True):
            sends = at.sends(team.index(owner))
            if sends[me]:
                sent[team.index(owner)].append(lists.cast(part(k), self.like.dtype))
            if owner == processes.rank():
                wholes.append(self.like.new_empty(at.shape))
                for j, target in enumerate(at.parts(wholes[-1])):
                    targets[j] += [target] if sends[j] else []
        messages.exchange(sent, targets, self.like, team)
        return wholes

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all tensors, from the whole ones of their owners."""
        if not self.placements:
            return self._broadcast(wholes)
        team = self.team
        own = iter(wholes)
        sent: list[list[Tensor]] = [[] for _ in team]
        targets: list[list[Tensor]] = [[] for _ in team]
        for tensor, at, owner in zip(self.tensors, self.placements, self.owners, strict=True):
            targets[team.index(owner)].append(self.like.new_empty(shards.local(tensor).shape))
            if owner == processes.rank():
                for j, part in enumerate(at.parts(lists.cast(next(own), self.like.dtype))):
                    sent[j].append(part)
        messages.exchange(sent, targets, self.like, team)
        found = [iter(each) for each in targets]
        return [next(found[team.index(owner)]) for owner in self.owners]

    def _broadcast(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """Return all whole tensors, from those that this rank owns, by one broadcast per owner."""
        found = list(self.tensors)
        for owner in sorted({*self.owners}):
            members = [at for at, each in enumerate(self.owners) if each == owner]
            sizes = [self.tensors[at].numel() for at in members]
            if owner == processes.rank():
                packed = torch.cat([lists.cast(x, self.like.dtype).reshape(-1) for x in wholes])
            else:
                packed = self.like.new_empty(sum(sizes))
            packed = messages.broadcast(packed, owner, self.team)
            for at, value in zip(members, packed.split(sizes), strict=True):
                found[at] = value.view(self.tensors[at].shape)
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
