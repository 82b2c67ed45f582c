"""Memory of a training run."""

from __future__ import annotations

import gc
from importlib import import_module

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake


def set_imports_aside() -> None:
    """Hide all objects that are alive from the garbage collector, and so from `Memory`.

    Imported packages leave many objects. Looking at all of them takes half a second. Call this
    after the imports, and before data are loaded.
    """
    import_module("torch._dynamo")  # otherwise an optimizer imports it in its first step
    gc.freeze()


class Memory:
    """Measures the bytes allocated after the object was made.

    On a CUDA device this is the peak that torch's allocator records. On the CPU no peak is
    recorded; there it is the size of the tensors that are alive, without activations.
    """

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated() if self._cuda else _held()

    def used(self) -> int:
        """Return the bytes used since this object was made."""
        now = torch.cuda.max_memory_allocated() if self._cuda else _held()
        return now - self._before


def _held() -> int:
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not is_fake(x)]
    gradients = [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x for x in (*tensors, *gradients)}
    return sum(x.untyped_storage().nbytes() for x in storages.values())
