"""The processes that train one model together: how many, what they agree on, who failed."""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from hybrid_predict.errors import RankError, UnsupportedSetupError

_FAILURE = "hybrid_predict/failure"


def size() -> int:
    """How many processes train together: those of the default process group, over all nodes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among them, from 0."""
    return dist.get_rank() if size() > 1 else 0


def rank_zero_logger(name: str) -> logging.Logger:
    """The logger of a module, silent on every rank but the first."""
    logger = logging.getLogger(name)
    logger.addFilter(_on_rank_zero)
    return logger


def _on_rank_zero(record: logging.LogRecord) -> bool:
    return rank() == 0


def combine(norms: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    r"""What the ranks have measured together, the same on all of them, in one all-reduce.

    .. math:: n = \Bigl(\sum_r n_r^2\Bigr)^{1/2}, \qquad s = \sum_r s_r

    The host does not wait for it on a device that works asynchronously.

    Args:
        norms: This rank's part of some norms, shape (N,).
        sums: Its part of some sums, shape (M,).
    """
    if size() == 1:
        return norms, sums
    # Squares of 32-bit numbers overflow in 32 bits.
    packed = _all_reduced(torch.cat([norms.double().square(), sums.double()]))
    roots, totals = packed.split([len(norms), len(sums)])
    return roots.sqrt().float(), totals.float()


def total(count: int) -> int:
    """The sum of a count over the ranks; waits for the device."""
    return count if size() == 1 else int(_all_reduced(torch.tensor([count])).item())


def gather(value: Any) -> list[Any]:
    """What every rank has, by rank; every rank has to call it."""
    values: list[Any] = [value] * size()
    if size() > 1:
        dist.all_gather_object(values, value)
    return values


def fail_together(error: BaseException | None) -> None:
    """Tell the other ranks why this one is about to stop, unless one of them has stopped before.

    The word is left in the store that the group was made with, as no rank can reduce any more. The
    others meet it when a collective of theirs fails: with gloo as soon as this process has ended.

    Args:
        error: What this rank fails with; None if it does not fail.

    Raises:
        RankError: If another rank was first, naming that rank and its failure.
    """
    if error is None or size() == 1 or isinstance(error, RankError):
        return
    own = f"{rank()} {summary(error)}"
    try:
        store = dist.distributed_c10d._get_default_store()
        first = store.compare_set(_FAILURE, "", own).decode()
    except RuntimeError:
        raise RankError(None, "the loss of the group's store, which ended with it") from error
    if first != own:
        number, cause = first.split(" ", 1)
        raise RankError(int(number), cause) from error


def summary(error: BaseException) -> str:
    """An error's type and the first line of its text."""
    text = str(error).strip().splitlines()
    return type(error).__name__ + (f": {text[0]}" if text else "")


def check_same(*described: Any) -> None:
    """Check that every rank is about to train the same parameters in the same way.

    Args:
        described: What has to be the same, as objects whose ``repr`` tells it.

    Raises:
        UnsupportedSetupError: On every rank alike, if one differs.
    """
    if size() == 1:
        return
    text = re.sub(r" at 0x\w+", "", repr(described))
    digest = hashlib.sha256(text.encode()).digest()
    number = int.from_bytes(digest[:7], "big")
    both = _all_reduced(torch.tensor([number, -number]), dist.ReduceOp.MAX).tolist()
    if both[0] != -both[1]:
        raise UnsupportedSetupError(
            "process group",
            "the same parameters and configuration on every rank",
            f"{size()} ranks that differ",
            "Use data parallelism, in which every rank trains the whole model; "
            "pipeline parallelism and independent models in one group cannot be forecast.",
        )


def _all_reduced(values: Tensor, operation: Any = None) -> Tensor:
    """In place where the group's backend can reduce on the tensor's device."""
    device = values.device
    if device.type == "cpu" and dist.get_backend() == "nccl":
        values = values.cuda()
    dist.all_reduce(values, operation or dist.ReduceOp.SUM)
    return values.to(device)
