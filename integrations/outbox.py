"""Sends calls to a server from a thread, so that a slow server does not delay training."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import final

logger = logging.getLogger(__name__)


@final
class Outbox:
    """Queue of calls to a server, in order; each is repeated until it succeeds.

    If the server is down, slow or full, one warning is logged, and the calls wait. At most
    ``capacity`` calls wait; further ones displace the oldest, which are counted as dropped.

    Args:
        name: Name of the server in warnings.
        capacity: Largest number of waiting calls, at least 1.
        patience: Longest time in seconds between two attempts; the first wait is a sixtieth of it.
    """

    def __init__(self, name: str, capacity: int = 10_000, patience: float = 60.0) -> None:
        self.dropped = 0
        self._name, self._capacity, self._patience = name, capacity, patience
        self._calls: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._closing = self._warned = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        with self._changed:
            return len(self._calls)

    def send(self, call: Callable[[], object]) -> None:
        """Queue a call, and return at once."""
        with self._changed:
            if len(self._calls) >= self._capacity:
                self._calls.popleft()
                self.dropped += 1
            self._calls.append(call)
            if self._thread is None:
                self._closing = False
                self._thread = threading.Thread(
                    target=self._work, name="hybrid_predict-outbox", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout: float = 30.0) -> int:
        """Send what is queued, for at most ``timeout`` seconds, and end the thread.

        Args:
            timeout: Seconds to wait; a call that hangs in the server ends with the process.

        Returns:
            Number of calls that were dropped since the outbox was made.
        """
        thread = self._thread
        deadline = monotonic() + timeout
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, timeout)
            self._closing = True
            self.dropped += len(self._calls)
            self._calls.clear()
            self._changed.notify_all()
        if thread is not None:
            thread.join(max(0.1, deadline - monotonic()))
            self._thread = None
        if self.dropped:
            logger.warning("%s: %d logging calls were lost.", self._name, self.dropped)
        return self.dropped

    def _work(self) -> None:
        wait = self._patience / 60
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closing)
                if not self._calls:
                    return
                call = self._calls[0]
            try:
                call()
            except Exception as error:
                if not self._warned:
                    self._warned = True
                    text = "%s could not be reached (%r); training continues, and logs are queued."
                    logger.warning(text, self._name, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, wait)
                wait = min(2 * wait, self._patience)
                continue
            wait = self._patience / 60
            with self._changed:
                # A full queue may have dropped this call in the meantime.
                if self._calls and self._calls[0] is call:
                    self._calls.popleft()
                self._changed.notify_all()
