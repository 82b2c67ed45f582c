"""``FullyShardedDataParallel`` (FSDP1) with original parameters: their ranges and names.

Between two passes, torch makes each parameter the range of it that lies in this rank's shard of a
flat parameter. Private attributes of torch are read in this file alone; ``test_distributed``
compares what they say with torch's public calls.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, final

from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes

_INNER = "_fsdp_wrapped_module"

RANGES: Any = WeakTensorKeyDictionary()
"""The `Range` of each parameter that holds one; nothing in the parameter tells so."""


@final
@dataclass(frozen=True)
class Range:
    """What is known of a parameter of which each rank holds a range of the flat entries."""

    form: Tensor  # of the whole parameter's shape, type and device, without memory
    sizes: tuple[int, ...]  # number of entries in each range
    places: tuple[int, ...]  # number of the range that each rank holds
    has_gradient: Callable[[], bool]  # the same on all ranks, also on one with an empty range


def wrappers(model: nn.Module) -> list[Any]:
    """Return the modules of class ``FullyShardedDataParallel``."""
    return [module for module in model.modules() if _is_wrapper(module)]


def _is_wrapper(module: nn.Module) -> bool:
    return any(cls.__name__ == "FullyShardedDataParallel" for cls in type(module).__mro__)


def check_supported(model: nn.Module) -> None:
    """Raise `UnsupportedSetupError` unless parameters and their ranges stay where they are."""
    for module, flat in _flat_parameters(model):
        extended = any(extension is not None for extension in flat._param_extensions)
        moved = module.cpu_offload.offload_params or extended or not all(flat._contiguities)
        if moved or not module._use_orig_params:
            raise UnsupportedSetupError(
                "model",
                "FullyShardedDataParallel with original parameters, contiguous and on their device",
                "another kind",
                "Set use_orig_params=True, as Lightning does, and leave cpu_offload and tensor "
                "parallelism out; or use fully_shard (FSDP2).",
            )


def note_ranges(model: nn.Module) -> None:
    """Note which range of each parameter every rank holds; every rank has to call it."""
    held = _flat_parameters(model)
    divided = [(m, flat) for m, flat in held if m._handle.uses_sharded_strategy]
    numbers = processes.gather([dist.get_rank(m.process_group) for m, _ in divided])
    for (module, flat), places in zip(divided, zip(*numbers, strict=True), strict=True):
        each = flat._sharded_size.numel()
        cuts = [each * k for k in range(max(places) + 2)]
        padded = zip(accumulate(flat._numels_with_padding), flat._is_padding_mask, strict=True)
        ends = [end for end, padding in padded if not padding]
        for k, (p, shape) in enumerate(zip(flat._params, flat._shapes, strict=True)):
            start = ends[k] - math.prod(shape)
            inside = [min(max(cut, start), ends[k]) for cut in cuts]
            sizes = tuple(b - a for a, b in pairwise(inside))
            form = p.detach().new_empty(()).expand(tuple(shape))
            has_gradient = partial(_has_gradient, weakref.ref(module._handle), k)
            RANGES[p] = Range(form, sizes, places, has_gradient)


def reshard(module: Any) -> None:
    """Free what a forward pass of a wrapper has gathered and kept."""
    handle = module._handle
    # There can only be a copy after the first forward pass.
    gathers = handle is not None and hasattr(handle.flat_param, "_full_param_padded")
    if gathers and not handle.needs_unshard():
        handle.reshard(True)


def clean(name: str) -> str:
    """Return a name without the parts that wrappers add."""
    return ".".join(part for part in name.split(".") if part != _INNER)


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model as if nothing was wrapped."""
    return ((clean(name), p) for name, p in model.named_parameters())


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model as if nothing was wrapped."""
    for name, module in model.named_modules():
        if not _is_wrapper(module):
            yield clean(name), module


def _flat_parameters(model: nn.Module) -> list[tuple[Any, Any]]:
    held = [module for module in wrappers(model) if module._handle is not None]
    return [(module, module._handle.flat_param) for module in held]


def _has_gradient(handle: weakref.ref[Any], k: int) -> bool:
    """Return whether the last backward pass has reached a flat parameter, and parameter k needs it.

    Only where a rank has entries of a parameter, the parameter itself shows that.
    """
    flat = getattr(handle(), "flat_param", None)
    return flat is not None and flat.grad is not None and bool(flat._params[k].requires_grad)
