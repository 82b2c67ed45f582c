"""Where a Trainer of transformers shows a run: its lines, its progress bar, its reporters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, final

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerState
from transformers.trainer_callback import CallbackHandler


def call_first(callback: Any) -> list[Any]:
    """Make a callback the first of its Trainer, and return all; called by the callback itself.

    Then the callbacks that report to TensorBoard and others get what it adds to logs. The Trainer
    does not pass its callbacks to them, so the one that calls them is found in the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler):
            callbacks: list[Any] = handler.callbacks
            callbacks.insert(0, callbacks.pop(callbacks.index(callback)))
            return callbacks
        frame = frame.f_back
    return []  # the callback is called by hand


@final
class TrainerScreen:
    """The progress bar of a Trainer, and the stream of its lines."""

    def __init__(self, state: TrainerState, callbacks: list[Any]) -> None:
        self._first = state.is_world_process_zero
        self._callbacks = callbacks
        self._values: Callable[[], dict[str, str]] = dict

    def show(self, values: Callable[[], dict[str, str]]) -> None:
        """Show values behind the progress bar from now on."""
        self._values = values

    def restore(self) -> None:
        """Show no values from now on; the Trainer makes a new bar for every run."""
        self._values = dict

    def say(self, text: str, *, live: bool = False) -> None:
        """Print one line on rank 0, above a progress bar if there is one."""
        if self._first:
            tqdm.write(text, file=sys.stderr)

    def advance(self, full_steps: float) -> None:
        """Set the number of full steps at which the progress bar will be full."""
        for each in self._callbacks:
            bar = each.training_bar if isinstance(each, ProgressCallback) else None
            if bar is not None:
                bar.total = round(full_steps)
                bar.set_postfix(self._values(), refresh=False)
