"""How much memory a training run takes."""

from __future__ import annotations

import gc

import torch
from torch import Tensor


class Memory:
    """Bytes used from here on.

    On a CUDA device the peak of torch's allocator. On the CPU, where nothing keeps a peak, the
    tensors that are held when asked: weights, gradients, states of optimizer and forecasts, but no
    activations, which are the same for all arms.
    """

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated() if self._cuda else _held()

    def used(self) -> int:
        """Bytes used since this object was made."""
        now = torch.cuda.max_memory_allocated() if self._cuda else _held()
        return now - self._before


def _held() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x for x in (*tensors, *gradients)}
    return sum(x.untyped_storage().nbytes() for x in storages.values())
