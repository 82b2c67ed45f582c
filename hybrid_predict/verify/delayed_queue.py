"""A queue of tensors from device to host that are read later, so that the host does not wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.tensors.host import HostCopy


@final
class DelayedQueue:
    """Returns each tensor ``lag`` pushes after it was pushed.

    Args:
        lag: Number of pushes before a tensor is read. With 0 it is read at once, which waits for
            the device.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._queue: deque[tuple[Any, HostCopy]] = deque()

    def push(self, tag: Any, values: Tensor) -> None:
        """Start copying a flat tensor to the host, with a tag that describes it."""
        self._queue.append((tag, HostCopy(values)))

    @property
    def tags(self) -> list[Any]:
        """Tags of the tensors in the queue, oldest first."""
        return [tag for tag, _ in self._queue]

    def pop(self, drain: bool = False) -> tuple[Any, list[float]] | None:
        """Return the tag and numbers pushed ``lag`` pushes ago, or None if there are none yet.

        Args:
            drain: Whether to return the oldest tensor however recent it is.
        """
        if len(self._queue) <= (0 if drain else self.lag):
            return None
        tag, values = self._queue.popleft()
        return tag, values.read().tolist()

    def state_dict(self) -> list[tuple[Any, list[float]]]:
        """Return tags and numbers of all tensors in the queue; waits for the device."""
        return [(tag, values.read().tolist()) for tag, values in self._queue]

    def load_state_dict(self, state: Sequence[tuple[Any, list[float]]]) -> None:
        """Load a state of :meth:`state_dict`."""
        self._queue = deque(
            (tag, HostCopy(torch.tensor(values, dtype=torch.float64))) for tag, values in state
        )
