"""Sharded tensors: whole and local ones, gradients, and what a saved state has of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import fsdp1, processes
from hybrid_predict.ranks.processes import rank, size

_PLAIN = {Tensor, nn.Parameter}
_Box = tuple[tuple[int, int], ...]

DEEPSPEED = (
    "DeepSpeed divides weights among ranks or updates copies of them. Use DistributedDataParallel, "
    "or shard the model with torch.distributed.fsdp.fully_shard (in a Lightning Trainer, with "
    "ModelParallelStrategy)."
)
"""Remedy for models and optimizers of DeepSpeed."""


def of_deepspeed(given: Any) -> bool:
    """Return whether a model or optimizer belongs to DeepSpeed."""
    names = [f"{cls.__module__}.{cls.__name__}" for cls in type(given).__mro__]
    return any(name.startswith("deepspeed.") or "DeepSpeedEngine" in name for name in names)


def check_supported(model: nn.Module) -> None:
    """Raise `UnsupportedSetupError` unless parameters are full, or shards along a dimension."""
    fsdp1.check_supported(model)
    for name, p in model.named_parameters():
        placements = getattr(p, "placements", ()) if is_dtensor(p) else ()
        odd = [str(x) for x in placements if type(x).__name__ not in ("Shard", "Replicate")]
        if odd:
            expected = "full parameters, or one shard per rank along a dimension"
            remedy = "Use fully_shard or tensor parallelism, not both on one parameter."
            raise UnsupportedSetupError("model", expected, f"{odd[0]} of {name}", remedy)


def unwrapped(model: Any) -> Any:
    """Return the module that ``DistributedDataParallel`` wraps, or the model as is.

    Raises:
        UnsupportedSetupError: If the model is an engine of DeepSpeed.
    """
    if of_deepspeed(model):
        raise UnsupportedSetupError("model", "a torch module", type(model).__name__, DEEPSPEED)
    wrapped = type(model).__name__ == "DistributedDataParallel"
    return model.module if wrapped else model


def is_tensor_parallel(model: nn.Module) -> bool:
    """Return whether layers compute on sharded parameters, unlike FSDP2, which gathers first."""
    return not fsdp2_modules(model) and any(is_dtensor(p) for p in model.parameters())


def fsdp2_modules(model: nn.Module) -> list[Any]:
    """Return the modules that ``fully_shard`` was applied to."""
    return [m for m in model.modules() if "FSDPModule" in [cls.__name__ for cls in type(m).__mro__]]


def keepers(model: nn.Module) -> list[Callable[[], None]]:
    """Return functions that free what forward passes alone have gathered and FSDP keeps."""
    wrappers = [partial(fsdp1.reshard, module) for module in fsdp1.wrappers(model)]
    return [*(module.reshard for module in fsdp2_modules(model)), *wrappers]


def gathers(model: nn.Module) -> bool:
    """Return whether FSDP puts whole tensors in the places of parameters in a forward pass."""
    return bool(fsdp2_modules(model) or fsdp1.wrappers(model))


def all_plain(tensors: Sequence[Any]) -> bool:
    """Return whether no tensor is known to be a part of another, in less time than one by one."""
    return not fsdp1.RANGES.data and {*map(type, tensors)} <= _PLAIN


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which every rank holds a shard or a copy."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "to_local")


def _range(tensor: Any) -> fsdp1.Range | None:
    known = fsdp1.RANGES.data and isinstance(tensor, nn.Parameter)
    return fsdp1.RANGES.get(tensor) if known else None


def is_sharded(tensor: Any) -> bool:
    """Return whether a rank holds a part of a tensor: of a DTensor, or of a flattened parameter."""
    return is_dtensor(tensor) or _range(tensor) is not None


def team(tensor: Any) -> tuple[int, ...]:
    """Return the ranks that hold parts or copies of a tensor."""
    if is_dtensor(tensor):
        return tuple(tensor.device_mesh.mesh.flatten().tolist())
    return tuple(range(size()))


def form(parameter: Tensor) -> Tensor:
    """Return a tensor of the whole parameter's shape, type and device, to be read for these."""
    known = _range(parameter)
    return parameter if known is None else known.form


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached; it shares the tensor's storage."""
    detached: Any = tensor.detach() if tensor.requires_grad else tensor
    return detached.to_local() if is_dtensor(detached) else detached


def parts(whole: Tensor, tensor: Any) -> list[Tensor]:
    """Return the part of each rank of a sharded tensor's team, as views of a whole tensor."""
    if (known := _range(tensor)) is not None:
        ranges = whole.reshape(-1).split(known.sizes)
        return [ranges[place] for place in known.places]
    return [whole[tuple(slice(*ends) for ends in box)] for box in _boxes(tensor)]


def layout(tensor: Any) -> str:
    """Describe which part of a tensor each rank of its team holds, in the same way on all ranks."""
    if (known := _range(tensor)) is not None:
        return f"{known.sizes} on {known.places}"
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        return f"{shape}"
    return f"{shape} by {tensor.placements} on {tuple(tensor.device_mesh.mesh.shape)}"


def sends(tensor: Any, to: int) -> list[bool]:
    """Return for each rank of the team whether it sends its part to member ``to`` of it.

    Of several ranks that hold the same part, the one in the copy of that member does.
    """
    known = _range(tensor)
    places: Sequence[Any] = _boxes(tensor) if known is None else known.places
    seen = Counter[Any]()
    copies = []
    for place in places:
        copies.append(seen[place])
        seen[place] += 1
    pairs = zip(copies, places, strict=True)
    return [copy == min(copies[to], seen[place] - 1) for copy, place in pairs]


def _boxes(tensor: Any) -> tuple[_Box, ...]:
    mesh = tensor.device_mesh.mesh
    return _divided(tuple(tensor.shape), tuple(mesh.shape), tuple(tensor.placements))


@lru_cache(maxsize=1024)
def _divided(
    shape: tuple[int, ...], mesh: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[_Box, ...]:
    """Return the part of each rank: all along a dimension but the last are equally long."""
    boxes: list[_Box] = [tuple((0, n) for n in shape)]
    for count, placement in zip(mesh, placements, strict=True):
        cut = []
        for box in boxes:
            if not placement.is_shard():
                cut += [box] * count
                continue
            d = placement.dim
            start, stop = box[d]
            most = -(-(stop - start) // count)
            ends = [min(start + most * k, stop) for k in range(count + 1)]
            cut += [(*box[:d], each, *box[d + 1 :]) for each in pairwise(ends)]
        boxes = cut
    return tuple(boxes)


def full_tensor(part: Tensor, tensor: Any) -> Tensor:
    """Gather the full tensor from parts placed like ``tensor``; every rank has to call it."""
    whole = part.new_empty(form(tensor).shape)
    if _shards(tensor) == 1:
        return part.view(whole.shape)
    members = team(tensor)
    me = members.index(rank())
    sent = [[part] if sends(tensor, k)[me] else [] for k in range(len(members))]
    pairs = zip(parts(whole, tensor), sends(tensor, me), strict=True)
    targets = [[target] if given else [] for target, given in pairs]
    processes.exchange(sent, targets, part, processes.group_of(members))
    return whole


def local_shard(full: Tensor, tensor: Any) -> Tensor:
    """Cut this rank's part out of a full tensor, placed like ``tensor``, without communication."""
    if not is_sharded(tensor):
        return full
    part = parts(full, tensor)[team(tensor).index(rank())]
    return part.to(local(tensor).device, copy=True).contiguous()


def on_host(parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Gather full tensors on the host of rank 0, none elsewhere; every rank has to call it.

    ``parts`` are local shards of things like the parameters ``tensors``, or none.
    """
    full = (full_tensor(part, tensor) for part, tensor in zip(parts, tensors, strict=False))
    return [x.cpu() for x in full if rank() == 0]


def any_sharded(tensors: Sequence[Tensor]) -> bool:
    """Return whether a rank holds a part of any of these tensors."""
    return not all_plain(tensors) and any(map(is_sharded, tensors))


def having_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that have a gradient, alike on all ranks that hold parts of them."""
    if all_plain(parameters):
        return [p for p in parameters if p.grad is not None]
    known = [(p, _range(p)) for p in parameters]
    return [p for p, at in known if (p.grad is not None if at is None else at.has_gradient())]


def dense_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the local shards of the gradients that parameters have, dense and detached."""
    known = [p.grad for p in parameters]
    usual = [type(g) is Tensor and not (g.is_sparse or g.requires_grad) for g in known]
    if all(usual) and all_plain(parameters):
        return known  # type: ignore[return-value]
    return [dense_gradient(p) for p in parameters]


def dense_gradient(p: Any) -> Tensor:
    """Return this rank's part of a parameter's gradient, placed like the parameter, and dense.

    It is zero where this rank has none.
    """
    gradient = p.grad
    if gradient is None:
        return local(p).new_zeros(p.shape)
    if is_dtensor(gradient) and gradient.placements != p.placements:
        gradient = gradient.redistribute(placements=p.placements)
    part = local(gradient)
    return part.coalesce().to_dense() if part.is_sparse else part


def norm_factors(tensors: Sequence[Any]) -> list[float] | None:
    r"""Return factors on local norms with which a sum over the ranks counts every element once.

    .. math:: \sqrt{1 / c_k}

    with c_k the number of ranks that hold each element of tensor k. None stands for a single rank.
    """
    if size() == 1:
        return None
    return [math.sqrt(_shards(tensor) / size()) for tensor in tensors]


def _shards(tensor: Any) -> int:
    if (known := _range(tensor)) is not None:
        return len(known.sizes)
    if not is_dtensor(tensor):
        return 1
    counts = zip(tensor.device_mesh.mesh.shape, tensor.placements, strict=True)
    return math.prod(count for count, placement in counts if placement.is_shard())
