"""Models and tensors of which ranks may hold parts: this rank's part, its gradient, and names.

Of what is whole on every rank, this module knows all. Of other tensors, `placements` knows which
part each rank holds, and `fsdp` what models do that FSDP divides; they are imported then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes
from hybrid_predict.tensors import lists

if TYPE_CHECKING:
    from hybrid_predict.ranks.placements import Placement

_PLAIN = {Tensor, nn.Parameter}

RANGES: Any = WeakTensorKeyDictionary()
"""How ranks hold each parameter of FSDP1 that is a range; nothing in the parameter tells so."""

DEEPSPEED = (
    "DeepSpeed divides weights among ranks or updates copies of them. Use DistributedDataParallel, "
    "or shard the model with torch.distributed.fsdp.fully_shard (in a Lightning Trainer, with "
    "ModelParallelStrategy)."
)
"""Remedy for models and optimizers of DeepSpeed."""

Counts = Sequence[float] | None
"""One factor per tensor, with which every element counts once over the ranks; None for one rank."""


def of_deepspeed(given: Any) -> bool:
    """Return whether a model or optimizer belongs to DeepSpeed."""
    names = [f"{cls.__module__}.{cls.__name__}" for cls in type(given).__mro__]
    return any(name.startswith("deepspeed.") or "DeepSpeedEngine" in name for name in names)


def unwrapped(model: Any) -> Any:
    """Return the module that ``DistributedDataParallel`` wraps, or the model as is.

    Raises:
        UnsupportedSetupError: If the model is an engine of DeepSpeed.
    """
    if of_deepspeed(model):
        raise UnsupportedSetupError("model", "a torch module", type(model).__name__, DEEPSPEED)
    wrapped = type(model).__name__ == "DistributedDataParallel"
    return model.module if wrapped else model


def clean(name: str) -> str:
    """Return a name without the parts that FSDP1 adds."""
    return name.replace("_fsdp_wrapped_module.", "")


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a model as if nothing was wrapped."""
    return ((clean(name), p) for name, p in model.named_parameters())


def note(model: nn.Module) -> None:
    """Do as `fsdp.note`, where there are ranks."""
    if processes.grouped():
        from hybrid_predict.ranks import fsdp

        fsdp.note(model)


def keepers(model: nn.Module) -> list[Callable[[], None]]:
    """Return functions that free what forward passes alone have gathered and FSDP keeps."""
    if not processes.grouped():
        return []
    from hybrid_predict.ranks import fsdp

    return fsdp.keepers(model)


def is_tensor_parallel(model: nn.Module) -> bool:
    """Return whether layers compute on sharded parameters, unlike FSDP, which gathers first."""
    return any(map(is_dtensor, model.parameters())) and not keepers(model)


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which every rank holds a shard or a copy."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "to_local")


def placement(tensor: Any) -> Placement | None:
    """Return how ranks hold a DTensor, or a parameter of FSDP1; None if each has all of it."""
    if not is_dtensor(tensor):
        return RANGES.get(tensor)
    from hybrid_predict.ranks import placements

    return placements.of_dtensor(tensor)


def form(parameter: Tensor) -> Tensor:
    """Return a tensor of the whole parameter's shape, type and device, to be read for these."""
    known = RANGES.get(parameter)
    return parameter if known is None else known.form


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, detached; it shares the tensor's storage."""
    detached: Any = tensor.detach() if tensor.requires_grad else tensor
    return detached.to_local() if is_dtensor(detached) else detached


def layout(tensor: Tensor) -> str:
    """Describe which part of a tensor each rank holds, in the same way on all ranks."""
    at = placement(tensor)
    return f"{tuple(tensor.shape)}" if at is None else at.layout


def full_tensor(part: Tensor, tensor: Tensor) -> Tensor:
    """Gather the full tensor from parts placed like ``tensor``; every rank has to call it."""
    at = placement(tensor)
    return part if at is None else at.gather(part)


def local_shard(full: Tensor, tensor: Tensor) -> Tensor:
    """Cut this rank's part out of a full tensor, placed like ``tensor``, without communication."""
    at = placement(tensor)
    return full if at is None else at.cut(full, local(tensor).device)


def on_host(parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Gather full tensors on the host of rank 0, none elsewhere; every rank has to call it.

    ``parts`` are local shards of things like the parameters ``tensors``, or none.
    """
    full = (full_tensor(part, tensor) for part, tensor in zip(parts, tensors, strict=False))
    return [x.cpu() for x in full if processes.rank() == 0]


def having_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that have a gradient, alike on all ranks that hold parts of them."""
    if not RANGES.data:
        return [p for p in parameters if p.grad is not None]
    known = [(p, RANGES.get(p)) for p in parameters]
    return [p for p, at in known if (p.grad is not None if at is None else at.has_gradient())]


def dense_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the local shards of the gradients that parameters have, dense and detached."""
    known = [p.grad for p in parameters]
    usual = [type(g) is Tensor and not (g.is_sparse or g.requires_grad) for g in known]
    if all(usual):
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


def norm_factors(tensors: Sequence[Tensor]) -> list[float] | None:
    r"""Return factors on local norms with which a sum over the ranks counts every element once.

    .. math:: \sqrt{1 / c_k}

    with c_k the number of ranks that hold each element of tensor k. None stands for a single rank.
    """
    ranks = processes.size()
    if ranks == 1:
        return None
    held = [placement(tensor) for tensor in tensors]
    return [math.sqrt((1 if at is None else at.shards) / ranks) for at in held]


def whole(norms: Tensor, products: Tensor, counts: Counts) -> tuple[Tensor, Tensor]:
    """Return norms and inner products of whole tensors, from those of K local shards each.

    There can be several of each tensor, one list of K after another. With several ranks, every rank
    has to make the same calls in the same order. The host does not wait for the device.
    """
    if counts is None:
        return norms, products
    scaled = []
    for values, power in ((norms, 1), (products, 2)):
        factors = [count**power for count in counts] * (len(values) // max(1, len(counts)))
        scaled.append(lists.scaled(values, factors))
    return processes.combine(*scaled)
