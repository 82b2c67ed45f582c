"""Models under FSDP: what is supported, what its passes gather, and the ranges that FSDP1 leaves.

Between two passes, ``FullyShardedDataParallel`` (FSDP1) with original parameters makes each
parameter the range of it that lies in this rank's shard of a flat parameter. Private attributes of
torch are read in this file alone; ``test_distributed`` compares what they say with torch's public
calls.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from torch import distributed as dist
from torch import nn

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes, shards
from hybrid_predict.ranks.placements import Box, Placement

_FSDP1 = "FullyShardedDataParallel"


def modules(model: nn.Module, kind: str = "FSDPModule") -> list[Any]:
    """Return the modules of a class by its name; by default, those under ``fully_shard``."""
    return [m for m in model.modules() if kind in [cls.__name__ for cls in type(m).__mro__]]


def keepers(model: nn.Module) -> list[Callable[[], None]]:
    """Return functions that free what forward passes alone have gathered and FSDP keeps."""
    wrappers = [partial(_reshard, module) for module in modules(model, _FSDP1)]
    return [*(module.reshard for module in modules(model)), *wrappers]


def _reshard(module: Any) -> None:
    handle = module._handle
    # There can only be a copy after the first forward pass.
    gathers = handle is not None and hasattr(handle.flat_param, "_full_param_padded")
    if gathers and not handle.needs_unshard():
        handle.reshard(True)


def note(model: nn.Module) -> None:
    """Note which range of each parameter every rank holds; every rank has to call it.

    Raises:
        UnsupportedSetupError: Unless parameters are full, or shards along a dimension, and they and
            their ranges stay where they are.
    """
    held = [(m, m._handle.flat_param) for m in modules(model, _FSDP1) if m._handle is not None]
    _check_supported(model, held)
    divided = [(m, flat) for m, flat in held if m._handle.uses_sharded_strategy]
    numbers = processes.gather([dist.get_rank(m.process_group) for m, _ in divided])
    for (module, flat), places in zip(divided, zip(*numbers, strict=True), strict=True):
        each = flat._sharded_size.numel()
        cuts = [each * k for k in range(max(places) + 2)]
        padded = zip(accumulate(flat._numels_with_padding), flat._is_padding_mask, strict=True)
        ends = [end for end, padding in padded if not padding]
        for k, (p, shape) in enumerate(zip(flat._params, flat._shapes, strict=True)):
            size = math.prod(shape)
            ranges = list(pairwise(min(max(cut - ends[k] + size, 0), size) for cut in cuts))
            boxes: dict[int, Box] = {rank: (ranges[place],) for rank, place in enumerate(places)}
            layout = f"{tuple(end - begin for begin, end in ranges)} on {places}"
            form = p.detach().new_empty(()).expand(tuple(shape))
            reached = partial(_has_gradient, weakref.ref(module._handle), k)
            shards.RANGES[p] = Placement(tuple(shape), boxes, len(ranges), layout, form, reached)


def _check_supported(model: nn.Module, held: list[tuple[Any, Any]]) -> None:
    for module, flat in held:
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
    for name, p in model.named_parameters():
        placements = getattr(p, "placements", ()) if shards.is_dtensor(p) else ()
        odd = [str(x) for x in placements if type(x).__name__ not in ("Shard", "Replicate")]
        if odd:
            expected = "full parameters, or one shard per rank along a dimension"
            remedy = "Use fully_shard or tensor parallelism, not both on one parameter."
            raise UnsupportedSetupError("model", expected, f"{odd[0]} of {name}", remedy)


def _has_gradient(handle: weakref.ref[Any], k: int) -> bool:
    """Return whether the last backward pass has reached a flat parameter, and parameter k needs it.

    Only where a rank has entries of a parameter, the parameter itself shows that.
    """
    flat = getattr(handle(), "flat_param", None)
    return flat is not None and flat.grad is not None and bool(flat._params[k].requires_grad)
