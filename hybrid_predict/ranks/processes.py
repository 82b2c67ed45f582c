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
    """Sum a count over the ranks; waits for the device."""
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
    parts: Sequence[Sequence[Tensor]], sizes: Sequence[int], like: Tensor, group: Any
) -> Sequence[Tensor]:
    """Send tensors to each rank of a group, and return the elements that each one sends, flat.

    Args:
        parts: Tensors for each rank.
        sizes: Number of elements from each rank.
        like: A tensor of their type and device.
        group: The process group.
    """
    counts = [sum(x.numel() for x in each) for each in parts]
    sent = _reducible(_packed([x for each in parts for x in each], like))
    received = sent.new_empty(sum(sizes))
    dist.all_to_all_single(received, sent, list(sizes), counts, group=group)
    return received.to(like.device).split(list(sizes))


def share(
    own: Sequence[Tensor], position: int, sizes: Sequence[int], like: Tensor
) -> Sequence[Tensor]:
    """Return the elements of the tensors of each rank, flat, the same bits on all ranks.

    Ranks may have different numbers of elements. They are gathered padded to the largest, or summed
    with zeros if that is less traffic, as when only a few ranks have any.

    Args:
        own: Tensors of this rank.
        position: Number of this rank.
        sizes: Number of elements of each rank.
        like: A tensor of their type and device.
    """
    most = max(sizes)
    sent = _packed(own, like)
    if len(sizes) * most <= 2 * sum(sizes):
        sent = _reducible(torch.cat([sent, like.new_zeros(most - len(sent))]))
        received = sent.new_empty(len(sizes) * most)
        # Renamed in torch 2.13.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(received, sent)
        rows = received.to(like.device).split(most)
        return [row[:length] for row, length in zip(rows, sizes, strict=True)]
    values = like.new_zeros(sum(sizes))
    values.split(list(sizes))[position].copy_(sent)
    return _all_reduced(values).split(list(sizes))


def _packed(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like.new_empty(0), *(x.reshape(-1) for x in tensors)])


def summary(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return type(error).__name__ + (f": {text[0]}" if text else "")


def check_same(*described: Any) -> None:
    """Check that values have the same ``repr`` on every rank.

    Raises:
        UnsupportedSetupError: On every rank, if they differ.
    """
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
    """Sum over the ranks."""
    reducible = _reducible(values)
    dist.all_reduce(reducible)
    return reducible.to(values.device)


def _reducible(values: Tensor) -> Tensor:
    """Return the values on the GPU if the process group cannot communicate on the CPU."""
    alone = values.device.type == "cpu" and dist.get_backend() == "nccl"
    return values.cuda() if alone else values
