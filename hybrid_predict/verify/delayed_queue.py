"""A queue between device and host, so that the device never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class DelayedQueue:
    """What is pushed is read ``lag`` pushes later.

    Args:
        lag: How many pushes later a measurement is read; 0 reads it at once, which on an
            accelerator waits for the device.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._queue: deque[tuple[Any, Tensor, Any]] = deque()

    def push(self, tag: Any, values: Tensor) -> None:
        """Start copying a flat tensor of numbers to the host, with a tag to read it back by."""
        event = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            values = host
        self._queue.append((tag, values, event))

    @property
    def tags(self) -> list[Any]:
        """The tags of the measurements still under way, oldest first."""
        return [tag for tag, _, _ in self._queue]

    def pop(self, drain: bool = False) -> tuple[Any, list[float]] | None:
        """The measurement pushed ``lag`` pushes ago, or None before there is one.

        With ``drain`` the oldest measurement, however recent.
        """
        if len(self._queue) <= (0 if drain else self.lag):
            return None
        tag, values, event = self._queue.popleft()
        if event is not None:
            event.synchronize()
        return tag, values.tolist()

    def state_dict(self) -> list[tuple[Any, list[float]]]:
        """The measurements still under way, read now."""
        for _, _, event in self._queue:
            if event is not None:
                event.synchronize()
        return [(tag, values.tolist()) for tag, values, _ in self._queue]

    def load_state_dict(self, state: Sequence[tuple[Any, list[float]]]) -> None:
        """Continue with the measurements of :meth:`state_dict`."""
        self._queue = deque((tag, torch.tensor(values), None) for tag, values in state)
