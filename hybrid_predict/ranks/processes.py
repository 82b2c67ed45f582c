"""The ranks that train one model together: number, reductions and agreement."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hybrid_predict.errors import UnsupportedSetupError


def size() -> int:
    """Return the number of ranks in the default process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this rank, from 0."""
    return dist.get_rank() if size() > 1 else 0


def rank_zero_logger(name: str) -> logging.Logger:
    """Return the logger of a module, silent on all ranks but rank 0."""
    logger = logging.getLogger(name)
    logger.addFilter(_on_rank_zero)
    return logger


def _on_rank_zero(record: logging.LogRecord) -> bool:
    return rank() == 0


def combine(norms: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    r"""Combine norms (N,) and sums (M,) over the ranks, in one all-reduce; the host does not wait.

    .. math:: n = \Bigl(\sum_r n_r^2\Bigr)^{1/2}, \qquad s = \sum_r s_r
    """
    if size() == 1:
        return norms, sums
    # Squares of 32-bit numbers overflow in 32 bits.
    packed = _all_reduced(torch.cat([norms.double().square(), sums.double()]))
    roots, totals = packed.split([len(norms), len(sums)])
    return roots.sqrt().to(norms.dtype), totals.to(sums.dtype)


def total(count: int) -> int:
    """Sum a count over the ranks."""
    return count if size() == 1 else int(_all_reduced(torch.tensor([count])).item())


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, ordered by rank; every rank has to call it."""
    values: list[Any] = [value] * size()
    if size() > 1:
        dist.all_gather_object(values, value)
    return values


def group_of(members: tuple[int, ...]) -> Any:
    """Return the process group of some ranks, None for that of all; all of them have to call it."""
    return None if len(members) == size() else _new_group(members, dist.group.WORLD)


@lru_cache(maxsize=64)
def _new_group(members: tuple[int, ...], world: Any) -> Any:
    return dist.new_group(list(members), use_local_synchronization=True)


def broadcast(value: Tensor, source: int, group: Any) -> Tensor:
    """Return the value of one rank; every rank of the group has to call it."""
    reducible = _reducible(value.contiguous())
    dist.broadcast(reducible, source, group=group)
    return reducible.to(value.device)


def exchange(
    sent: Sequence[Sequence[Tensor]], targets: Sequence[Sequence[Tensor]], like: Tensor, group: Any
) -> None:
    """Send tensors to each rank of a group, and fill targets with those that each one sends.

    They have the type of ``like``, and are on its device.
    """
    given = [x for each in sent for x in each]
    packed = _reducible(torch.cat([like.new_empty(0), *(x.reshape(-1) for x in given)]))
    counts = [[sum(x.numel() for x in each) for each in lists] for lists in (sent, targets)]
    received = packed.new_empty(sum(counts[1]))
    dist.all_to_all_single(received, packed, counts[1], counts[0], group=group)
    filled = [x for each in targets for x in each]
    values = received.to(like.device).split([x.numel() for x in filled])
    for target, value in zip(filled, values, strict=True):
        target.copy_(value.view(target.shape))


def summary(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return type(error).__name__ + (f": {text[0]}" if text else "")


def check_same(*described: Any) -> None:
    """Raise `UnsupportedSetupError` on every rank unless values have the same ``repr`` on all."""
    if size() == 1:
        return
    text = re.sub(r" at 0x\w+", "", repr(described))
    if len(set(gather(hashlib.sha256(text.encode()).digest()))) > 1:
        expected = "the same parameters and configuration on every rank"
        remedy = (
            "Use data parallelism. Pipeline parallelism, and independent models in one process "
            "group, are not supported."
        )
        got = f"{size()} ranks that differ"
        raise UnsupportedSetupError("process group", expected, got, remedy)


def _all_reduced(values: Tensor) -> Tensor:
    reducible = _reducible(values)
    dist.all_reduce(reducible)
    return reducible.to(values.device)


def _reducible(values: Tensor) -> Tensor:
    """Return the values on the GPU if the process group cannot communicate on the CPU."""
    alone = values.device.type == "cpu" and dist.get_backend() == "nccl"
    return values.cuda() if alone else values
