"""Memory of a training run, and of an engine."""

from __future__ import annotations

import gc
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.optim import Optimizer

from hybrid_predict import HybridEngine
from hybrid_predict.torch import shards


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


def held(engine: HybridEngine, model: nn.Module, optimizer: Optimizer) -> int:
    """Return the bytes of the tensors that an engine refers to, without those of the user."""
    borders = (type, ModuleType, nn.Module, Optimizer)
    state = [v for entry in optimizer.state.values() for v in entry.values()]
    everything = (*model.parameters(), *model.buffers(), *state)
    users = {_address(x) for x in everything if isinstance(x, Tensor)}
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    queue: list[Any] = [engine]
    while queue:
        x = queue.pop()
        if id(x) in seen or isinstance(x, borders):
            continue
        seen.add(id(x))
        if isinstance(x, Tensor):
            if x.is_meta:  # stands for what another rank holds
                continue
            sizes[_address(x)] = shards.local(x).untyped_storage().nbytes()
        elif isinstance(x, FunctionType):
            queue += x.__closure__ or ()  # globals are shared, so they do not count
        else:
            queue += gc.get_referents(x)
    return sum(size for address, size in sizes.items() if address not in users)


def _address(x: Tensor) -> int:
    return shards.local(x).untyped_storage().data_ptr()
