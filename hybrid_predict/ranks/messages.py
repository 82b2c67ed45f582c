"""What some ranks send each other: broadcasts, and parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hybrid_predict.ranks.processes import reducible, size


def broadcast(value: Tensor, source: int, team: tuple[int, ...]) -> Tensor:
    """Return the value of one rank; every rank of the team has to call it."""
    sent = reducible(value.contiguous())
    dist.broadcast(sent, source, group=_group_of(team))
    return sent.to(value.device)


def exchange(
    sent: Sequence[Sequence[Tensor]],
    targets: Sequence[Sequence[Tensor]],
    like: Tensor,
    team: tuple[int, ...],
) -> None:
    """Send tensors to each rank of a team, and fill targets with those that each one sends.

    They have the type of ``like``, and are on its device.
    """
    given = [x for each in sent for x in each]
    packed = reducible(torch.cat([like.new_empty(0), *(x.reshape(-1) for x in given)]))
    counts = [[sum(x.numel() for x in each) for each in lists] for lists in (sent, targets)]
    received = packed.new_empty(sum(counts[1]))
    dist.all_to_all_single(received, packed, counts[1], counts[0], group=_group_of(team))
    filled = [x for each in targets for x in each]
    values = received.to(like.device).split([x.numel() for x in filled])
    for target, value in zip(filled, values, strict=True):
        target.copy_(value.view(target.shape))


def _group_of(team: tuple[int, ...]) -> Any:
    """Return the process group of a team, None for that of all; all of the team have to call it."""
    return None if len(team) == size() else _new_group(team, dist.group.WORLD)


@lru_cache(maxsize=64)
def _new_group(team: tuple[int, ...], world: Any) -> Any:
    return dist.new_group(list(team), use_local_synchronization=True)
