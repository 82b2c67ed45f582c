"""Copies of a model's buffers, to undo what a full step has done to them."""

from __future__ import annotations

from typing import final

import torch
from torch import nn


@final
class BufferCopies:
    """The buffers of a model as they are now.

    Those made in inference mode, which do not change outside it, are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._places = {
            module: dict(module._buffers) for module in model.modules() if module._buffers
        }
        held = [buffer for buffers in self._places.values() for buffer in buffers.values()]
        unique = {id(x): x for x in held if x is not None and not x.is_inference()}
        self._copies = [(x, x.detach().clone()) for x in unique.values()]

    def restore(self) -> None:
        """Put the same buffers in the same places, with the values and sizes of before.

        It may come between a forward and a backward pass, so tensors keep their versions.
        """
        for module in {**self._places, **dict.fromkeys(self._model.modules())}:
            before = self._places.get(module, {})
            for name in [name for name in module._buffers if name not in before]:
                del module._buffers[name]
            for name, buffer in before.items():
                if name not in module._buffers or module._buffers[name] is not buffer:
                    module._buffers[name] = buffer
        for buffer, copy in self._copies:
            if buffer.layout is not torch.strided:
                with torch.no_grad():
                    buffer.copy_(copy)
            elif buffer.shape == copy.shape:
                buffer.data.copy_(copy)
            else:
                buffer.data = copy.clone()
