"""What a model's state dict holds while predicted steps are not verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from hybrid_predict.tensors import shards


@final
class VerifiedReads:
    """Puts verified values into the state dicts of a model, which itself does not change.

    Every module that holds one of the tensors gets a hook, so the state dict of a part of the model
    has them too. With ``keep_vars=True`` a caller gets the parameters themselves.

    Args:
        model: The model.
        tensors: Parameters and buffers of the model.
        verified: Function of a position in ``tensors``. It returns the value for state dicts (the
            local shard of a sharded parameter), or None for the present one.
        loading: Called before the modules load a state dict.
    """

    def __init__(
        self,
        model: nn.Module,
        tensors: Sequence[Tensor],
        verified: Callable[[int], Tensor | None],
        loading: Callable[[], None],
    ) -> None:
        self._model, self._tensors = model, tensors
        self._verified, self._loading = verified, loading
        self._handles: list[Any] = []

    def open(self) -> None:
        """Register the hooks."""
        positions = {id(tensor): k for k, tensor in enumerate(self._tensors)}
        for module in self._model.modules():
            held = {**module._parameters, **module._buffers}
            own = {name: positions[id(t)] for name, t in held.items() if id(t) in positions}
            if own:
                read = _Hook(_reader(own, self._verified))
                load = _Hook(lambda *_: self._loading())
                self._handles.append(module.register_state_dict_post_hook(read))
                self._handles.append(module.register_load_state_dict_pre_hook(load))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _reader(
    positions: dict[str, int], verified: Callable[[int], Tensor | None]
) -> Callable[..., None]:
    def read(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
        for name, position in positions.items():
            present = state.get(prefix + name)
            if not isinstance(present, Tensor) or present is getattr(module, name, None):
                continue
            value = verified(position)
            if value is None:
                continue
            with torch.no_grad():
                value = shards.local(value).to(shards.local(present))
                state[prefix + name] = shards.as_dtensor(value, present)

    return read


@final
class _Hook:
    """A hook that does nothing in copies and pickles of its module."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        if self._call is not None:
            self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None,)
