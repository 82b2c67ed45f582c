"""The ranks that train one model together: number, reductions and agreement."""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hybrid_predict.errors import UnsupportedSetupError


def grouped() -> bool:
    """Return whether there is a process group, be it of one rank."""
    return dist.is_available() and dist.is_initialized()


def size() -> int:
    """Return the number of ranks in the default process group."""
    return dist.get_world_size() if grouped() else 1


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
    sent = reducible(values)
    dist.all_reduce(sent)
    return sent.to(values.device)


def reducible(values: Tensor) -> Tensor:
    """Return the values on the GPU if the process group cannot communicate on the CPU."""
    alone = values.device.type == "cpu" and dist.get_backend() == "nccl"
    return values.cuda() if alone else values
