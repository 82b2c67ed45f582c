"""Sharded tensors: this rank's shard, the full tensor, and what every rank counts once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.tensors.ranks import rank, size

_PLAIN = (Tensor, nn.Parameter)

_REFUSED = {
    "FullyShardedDataParallel": "Shard the model with torch.distributed.fsdp.fully_shard (FSDP2).",
    "DeepSpeedEngine": "Use DistributedDataParallel or torch.distributed.fsdp.fully_shard.",
}


def refuse(model: nn.Module) -> None:
    """Check that a model's parameters are whole, or shards that can be forecast.

    Raises:
        UnsupportedSetupError: For FSDP1, DeepSpeed, and tensors that are split in another way than
            into one shard per rank along a dimension.
    """
    for module in model.modules():
        for cls in type(module).__mro__:
            if cls.__name__ in _REFUSED:
                expected = "a plain module, one in DistributedDataParallel, or FSDP2"
                remedy = _REFUSED[cls.__name__]
                raise UnsupportedSetupError("model", expected, cls.__name__, remedy)
    for name, p in model.named_parameters():
        placements = getattr(p, "placements", ()) if is_sharded(p) else ()
        odd = [str(x) for x in placements if type(x).__name__ not in ("Shard", "Replicate")]
        if odd:
            raise UnsupportedSetupError(
                "model",
                "parameters that are whole or split evenly along a dimension",
                f"{odd[0]} of {name}",
                "Use fully_shard or tensor parallelism, not both on one parameter.",
            )


def unwrapped(model: Any) -> Any:
    """The module inside a DistributedDataParallel, which has its own names and state dict."""
    wrapped = type(model).__name__ == "DistributedDataParallel"
    return model.module if wrapped else model


def is_tensor_parallel(model: nn.Module) -> bool:
    """Whether layers compute on sharded parameters, instead of gathering them as FSDP2 does."""
    return not _fsdp2_modules(model) and any(is_sharded(p) for p in model.parameters())


def _fsdp2_modules(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if "FSDPModule" in [c.__name__ for c in type(m).__mro__]]


class Resharder:
    """Frees the whole copies of parameters that FSDP2 keeps after a forward pass without backward.

    Such a copy hides what is written into the shards, and the model's own parameters with it.

    Args:
        model: A model that may contain modules that ``fully_shard`` has been applied to.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = _fsdp2_modules(model)

    def __call__(self) -> None:
        """Call after every write into parameters outside a forward or backward pass."""
        for module in self._modules:
            module.reshard()


def gathered(model: nn.Module) -> dict[int, int]:
    """The ``id`` of each parameter that FSDP2 computes with, to that of the shard that it is of.

    Empty for other models, and where this version of torch keeps them elsewhere.
    """
    states = [getattr(m, "_get_fsdp_state", lambda: None)() for m in _fsdp2_modules(model)]
    several = [getattr(state, "_fsdp_param_groups", None) for state in states]
    single = [[getattr(state, "_fsdp_param_group", None)] for state in states]
    groups = [g for many, one in zip(several, single, strict=True) for g in many or one]
    params = [p for group in groups for p in getattr(group, "fsdp_params", ())]
    wholes = [(getattr(p, "_unsharded_param", None), p.sharded_param) for p in params]
    return {id(whole): id(shard) for whole, shard in wholes if whole is not None}


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, of which every rank holds a part or a copy."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, without autograd history, aliasing its storage."""
    detached: Any = tensor.detach() if tensor.requires_grad else tensor
    return detached.to_local() if is_sharded(detached) else detached


def like(part: Tensor, tensor: Any) -> Tensor:
    """A part as :func:`local` gives it, made into what ``tensor`` is."""
    if not is_sharded(tensor):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def whole(part: Tensor, tensor: Any) -> Tensor:
    """The whole of which every rank gives its part, placed like ``tensor``; all have to call it."""
    return like(part, tensor).full_tensor() if is_sharded(tensor) else part  # type: ignore[attr-defined]


def own(complete: Tensor, tensor: Any) -> Tensor:
    """This rank's part of a whole, placed like ``tensor``; without communication."""
    if not is_sharded(tensor):
        return complete
    from torch.distributed.tensor import DTensor, Replicate

    mesh = tensor.device_mesh
    complete = complete.to(local(tensor).device)
    copies = DTensor.from_local(complete, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return copies.redistribute(placements=tensor.placements).to_local()


def collected(state: dict[str, Any], tensors: Sequence[Tensor]) -> dict[str, Any] | None:
    """A state with whole tensors on the host instead of parts; None on all ranks but the first.

    Args:
        state: Its lists of tensors go with ``tensors`` one by one; those shaped like parts are.
            A tensor by itself, or in a dictionary, is the same on every rank.
        tensors: Parameters; if none is sharded the state stays as it is, on every rank.
    """
    if not any(is_sharded(t) for t in tensors):
        return state
    wholes = {name: _each(value, tensors, _to_host) for name, value in state.items()}
    if rank() != 0:
        return None
    return {name: _hosted(x) for name, x in wholes.items()}


def spread(state: dict[str, Any], tensors: Sequence[Tensor]) -> dict[str, Any]:
    """The inverse of :func:`collected` on every rank, whatever the number of ranks was."""
    return {name: _each(value, tensors, _to_part) for name, value in state.items()}


def _each(value: Any, tensors: Sequence[Tensor], convert: Callable[[Tensor, Tensor], Any]) -> Any:
    fits = isinstance(value, list) and len(value) == len(tensors)
    if not fits or not all(isinstance(x, Tensor) for x in value):
        return value
    return [convert(x, t) for x, t in zip(value, tensors, strict=True)]


def _hosted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hosted(x) for name, x in value.items()}
    return value.cpu() if isinstance(value, Tensor) else value


def _to_host(part: Tensor, tensor: Tensor) -> Tensor | None:
    complete = whole(part, tensor) if part.shape == local(tensor).shape else part
    return complete.cpu() if rank() == 0 else None


def _to_part(complete: Tensor, tensor: Tensor) -> Tensor:
    return own(complete, tensor) if complete.shape == tensor.shape else complete


def local_gradient(p: Tensor) -> Tensor:
    """This rank's part of a parameter's gradient, placed like the parameter."""
    gradient: Any = p.grad
    if is_sharded(gradient) and gradient.placements != p.placements:  # type: ignore[attr-defined]
        gradient = gradient.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return local(gradient)


def roots(tensors: Sequence[Tensor]) -> list[float] | None:
    r"""Factors on local norms that make :func:`combine` count what several ranks hold once.

    .. math:: \sqrt{1 / c_k}

    with c_k the number of ranks that hold each element of tensor k; None for a single rank.
    """
    ranks = size()
    if ranks == 1:
        return None
    alone = math.sqrt(1.0 / ranks)
    return [
        math.sqrt(_shards(t.device_mesh, t.placements) / ranks) if is_sharded(t) else alone  # type: ignore[attr-defined]
        for t in tensors
    ]


@lru_cache(maxsize=64)
def _shards(mesh: Any, placements: Any) -> int:
    return math.prod(mesh.size(k) for k, p in enumerate(placements) if p.is_shard())
