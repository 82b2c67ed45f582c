"""Memory of an engine."""

import gc
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict import HybridEngine
from hybrid_predict.ranks import shards


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
