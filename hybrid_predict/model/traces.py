"""What an open step needs of the model: copies of its buffers, and hooks on its state dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import nn


@final
class BufferCopies:
    """The buffers of modules as they are now; one that is registered later stays as it is.

    Those made in inference mode, which do not change outside it, are left out.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places = [
            (module, name, buffer) for module in modules for name, buffer in module._buffers.items()
        ]
        held = {id(x): x for *_, x in self._places if x is not None and not x.is_inference()}
        self._copies = [(x, x.detach().clone()) for x in held.values()]

    def restore(self) -> None:
        """Put the same buffers in the same places, with the values and sizes of before.

        It may come between a forward and a backward pass, so tensors keep their versions.
        """
        for module, name, buffer in self._places:
            module._buffers[name] = buffer
        for buffer, copy in self._copies:
            if buffer.layout is not torch.strided:
                with torch.no_grad():
                    buffer.copy_(copy)
            elif buffer.shape == copy.shape:
                buffer.data.copy_(copy)
            else:
                buffer.data = copy.clone()


def watch_state_dict(
    model: Any, read: Callable[[], object], load: Callable[[], object]
) -> list[Any]:
    """Call functions before the state dict of a model is read, and loaded; return their handles.

    They are called before other hooks, as FSDP1 gathers parameters in one.
    """
    reads = model.register_state_dict_pre_hook(OwnHook(lambda *_: read()))
    loads = model.register_load_state_dict_pre_hook(OwnHook(lambda *_: load()))
    model._state_dict_pre_hooks.move_to_end(reads.id, last=False)
    model._load_state_dict_pre_hooks.move_to_end(loads.id, last=False)
    return [reads, loads]


@final
class OwnHook:
    """A hook of one module, which does nothing in copies and pickles of it."""

    def __init__(self, call: Callable[..., object] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        """Call the function, with the arguments of the hook."""
        if self._call is not None:
            self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a hook without a function."""
        return OwnHook, (None,)
