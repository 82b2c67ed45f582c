"""Copies of a model's buffers, to undo what a full step has done to them."""

from __future__ import annotations

from typing import final

import torch
from torch import nn


@final
class BufferCopies:
    """The buffers of a model as they are now; one that is registered later stays as it is.

    Those made in inference mode, which do not change outside it, are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module, name, buffer)
            for module in model.modules()
            for name, buffer in module._buffers.items()
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
