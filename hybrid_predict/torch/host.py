"""Copies of small tensors on the host, made while the device still computes."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


@final
class HostCopy:
    """A copy of a tensor on the host, to be read later; one not on CUDA is kept as it is."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._event = values, None
        if values.is_cuda:
            self._values = values.to("cpu", non_blocking=True)  # in pinned memory
            event: Any = torch.cuda.Event()
            event.record(torch.cuda.current_stream(values.device))
            self._event = event

    def read(self) -> Tensor:
        """Return the copy; waits until it is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._values
