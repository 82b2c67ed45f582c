"""Sharded tensors: local shards, full tensors, and norms over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import fsdp1
from hybrid_predict.ranks.layouts import all_plain, assembled, flat, is_dtensor, layout
from hybrid_predict.ranks.processes import rank, size

DEEPSPEED = (
    "DeepSpeed divides weights among ranks or updates copies of them. Use DistributedDataParallel, "
    "or shard the model with torch.distributed.fsdp.fully_shard (in a Lightning Trainer, with "
    "ModelParallelStrategy)."
)
"""Remedy for models and optimizers of DeepSpeed."""


def of_deepspeed(given: Any) -> bool:
    """Return whether a model, parameter or optimizer belongs to DeepSpeed."""
    names = [f"{cls.__module__}.{cls.__name__}" for cls in type(given).__mro__]
    made = any(name.startswith("deepspeed.") or "DeepSpeedEngine" in name for name in names)
    return made or any(hasattr(given, mark) for mark in ("ds_id", "_hp_mapping"))


def check_supported(model: nn.Module) -> None:
    """Check that the parameters of a model are full tensors, or sharded in a supported way.

    Raises:
        UnsupportedSetupError: For parameters of DeepSpeed, those that are not split into one shard
            per rank along a dimension, and what FSDP1 does not keep in place.
    """
    fsdp1.check_supported(model)
    for name, p in model.named_parameters():
        if of_deepspeed(p):
            raise UnsupportedSetupError("model", "a torch module", name, DEEPSPEED)
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


def is_sharded(tensor: Any) -> bool:
    """Return whether a rank holds a part of a tensor: of a DTensor, or of a flattened parameter."""
    return is_dtensor(tensor) or flat(tensor) is not None


def form(parameter: Tensor) -> Tensor:
    """Return a tensor of the whole parameter's shape, type and device, to be read for these."""
    known = flat(parameter)
    return parameter if known is None else known.form


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached; it shares the tensor's storage."""
    detached: Any = tensor.detach() if tensor.requires_grad else tensor
    return detached.to_local() if is_dtensor(detached) else detached


def full_tensor(part: Tensor, tensor: Any) -> Tensor:
    """Gather the full tensor from parts placed like ``tensor``; every rank has to call it."""
    return assembled(part, layout(tensor)) if is_sharded(tensor) else part


def local_shard(full: Tensor, tensor: Any) -> Tensor:
    """Cut this rank's part out of a full tensor, placed like ``tensor``, without communication."""
    if not is_sharded(tensor):
        return full
    place = layout(tensor)
    return place.part(full, place.team.index(rank())).to(local(tensor).device)


def gather_state(
    state: dict[str, Any], whole: dict[str, Any], tensors: Sequence[Tensor]
) -> dict[str, Any] | None:
    """Replace the local shards in a state by full tensors on the host of rank 0, None elsewhere.

    Gathered are lists of tensors that go with the parameters ``tensors`` one by one, where they
    have a local shard's shape; what is ``whole`` is added. If no parameter is sharded, every rank
    gets the state unchanged.
    """
    if not any_sharded(tensors):
        return {**state, **whole}
    gathered = {name: _convert_each(value, tensors, _to_host) for name, value in state.items()}
    both = {**gathered, **whole}
    return tree_map_only(Tensor, Tensor.cpu, both) if rank() == 0 else None


def shard_state(state: dict[str, Any], tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Undo :func:`gather_state` on every rank, for any number of ranks."""
    return {name: _convert_each(value, tensors, _to_shard) for name, value in state.items()}


def _convert_each(
    value: Any, tensors: Sequence[Tensor], convert: Callable[[Tensor, Tensor], Any]
) -> Any:
    fits = isinstance(value, list) and len(value) == len(tensors)
    if not fits or not all(isinstance(x, Tensor) for x in value):
        return value
    return [convert(x, t) for x, t in zip(value, tensors, strict=True)]


def _to_host(shard: Tensor, tensor: Tensor) -> Tensor | None:
    full = full_tensor(shard, tensor) if shard.shape == local(tensor).shape else shard
    return full.cpu() if rank() == 0 else None


def _to_shard(full: Tensor, tensor: Tensor) -> Tensor:
    return local_shard(full, tensor) if full.shape == form(tensor).shape else full


def any_sharded(tensors: Sequence[Tensor]) -> bool:
    """Return whether a rank holds a part of any of these tensors."""
    return not all_plain(tensors) and any(map(is_sharded, tensors))


def having_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that have a gradient, see :func:`has_gradient`."""
    if all_plain(parameters):
        return [p for p in parameters if p.grad is not None]
    return [p for p in parameters if has_gradient(p)]


def has_gradient(p: Tensor) -> bool:
    """Return whether a parameter has a gradient, the same on all ranks that hold parts of it."""
    known = flat(p)
    return p.grad is not None if known is None else known.has_gradient()


def local_gradient(p: Any) -> Tensor:
    """Return this rank's part of a parameter's gradient, placed like the parameter.

    It is zero where :func:`has_gradient` and this rank has none.
    """
    gradient = p.grad
    if gradient is None:
        return local(p).new_zeros(p.shape)
    if is_dtensor(gradient) and gradient.placements != p.placements:
        gradient = gradient.redistribute(placements=p.placements)
    return local(gradient)


def norm_factors(tensors: Sequence[Any]) -> list[float] | None:
    r"""Return factors on local norms with which a sum over the ranks counts every element once.

    .. math:: \sqrt{1 / c_k}

    with c_k the number of ranks that hold each element of tensor k. None stands for a single rank.
    """
    if size() == 1:
        return None
    shards = [layout(t).shards if is_sharded(t) else 1 for t in tensors]
    return [math.sqrt(number / size()) for number in shards]
