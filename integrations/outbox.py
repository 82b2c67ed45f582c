"""Sends what is logged from a thread of its own, so that a slow server never holds up training."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

logger = logging.getLogger(__name__)


class Outbox:
    """Calls to a server, in order, each tried again until it succeeds or the outbox is closed.

    A server that is down, slow or full costs one warning: what waits is sent when it returns. At
    most ``capacity`` calls wait; beyond that the oldest is dropped and counted.

    Args:
        name: What the warnings call the server.
        capacity: Calls that may wait, at least 1.
        patience: Seconds between two attempts at most; the first wait is a sixtieth of it.
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
        """Queue a call; returns at once."""
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
        """Send what waits, for so many seconds at most, and end the thread.

        Args:
            timeout: Seconds; a call that hangs in the server is left to end with the process.

        Returns:
            How many calls were lost since the outbox was made.
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
            logger.warning(
                "%s did not take %d calls before the end of the run.", self._name, self.dropped
            )
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
                    text = (
                        "%s could not be reached (%r); training goes on, and what is logged waits."
                    )
                    logger.warning(text, self._name, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, wait)
                wait = min(2 * wait, self._patience)
                continue
            wait = self._patience / 60
            with self._changed:
                # It may have been dropped meanwhile because too many were waiting.
                if self._calls and self._calls[0] is call:
                    self._calls.popleft()
                self._changed.notify_all()
