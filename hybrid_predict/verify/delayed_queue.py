"""A queue of tensors from device to host that are read later, so that the host does not wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor


@final
class DelayedQueue:
    """Returns each tensor ``lag`` pushes after it was pushed.

    Args:
        lag: Number of pushes before a tensor is read. With 0 it is read at once, which waits for
            the device.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._queue: deque[tuple[Any, Tensor, Any]] = deque()

    def push(self, tag: Any, values: Tensor) -> None:
        """Start copying a flat tensor to the host, with a tag that describes it."""
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
        """Tags of the tensors in the queue, oldest first."""
        return [tag for tag, _, _ in self._queue]

    def pop(self, drain: bool = False) -> tuple[Any, list[float]] | None:
        """Return the tag and numbers pushed ``lag`` pushes ago, or None if there are none yet.

        Args:
            drain: Whether to return the oldest tensor however recent it is.
        """
        if len(self._queue) <= (0 if drain else self.lag):
            return None
        tag, values, event = self._queue.popleft()
        if event is not None:
            event.synchronize()
        return tag, values.tolist()

    def state_dict(self) -> list[tuple[Any, list[float]]]:
        """Return tags and numbers of all tensors in the queue; waits for the device."""
        for _, _, event in self._queue:
            if event is not None:
                event.synchronize()
        return [(tag, values.tolist()) for tag, values, _ in self._queue]

    def load_state_dict(self, state: Sequence[tuple[Any, list[float]]]) -> None:
        """Load a state of :meth:`state_dict`."""
        self._queue = deque(
            (tag, torch.tensor(values, dtype=torch.float64), None) for tag, values in state
        )
