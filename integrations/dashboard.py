"""Shows the view of ``hybrid-predict watch`` during training, instead of the progress bar."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from importlib.util import find_spec
from time import monotonic, time
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.errors import install_line
from hybrid_predict.integrations.lightning_packages import package_of
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.report.terminal import lines

if TYPE_CHECKING:
    import lightning.pytorch as pl

_EVERY = 1.0

_KEYS = "Ctrl-C stops the run, as always."


def dashboard(trainer: pl.Trainer) -> Dashboard | None:
    """Make the live view of a run; return None and log the reason if it cannot be shown."""
    if not trainer.is_global_zero:
        return None
    reason = _why_not(trainer)
    if not reason:
        return Dashboard(trainer)
    package_of(trainer).utilities.rank_zero_info(f"HybridPredict shows no dashboard: {reason}.")
    return None


def _why_not(trainer: pl.Trainer) -> str:
    """Reason why there can be no live view; empty if there can."""
    if find_spec("rich") is None:
        return f"rich is not installed: {install_line('cli')}"
    if sys.stdout is None or not sys.stdout.isatty():
        return "standard output is not a terminal; use hybrid-predict watch in another terminal"
    bar = trainer.progress_bar_callback
    if bar is not None and not hasattr(bar, "is_disabled"):
        return f"{type(bar).__name__} cannot be disabled"
    return ""


@final
class Dashboard:
    """Shows a run below other output, and disables the progress bar meanwhile.

    The training itself draws the lines, at most once a second; there is no thread and no key
    binding.

    Args:
        trainer: The run's Trainer, before its progress bar starts.
        console: The ``rich`` console to draw on; None for the default one, which other users of
            ``rich`` share.
    """

    def __init__(self, trainer: pl.Trainer, console: Any = None) -> None:
        from rich import get_console

        self._trainer = trainer
        self._console = console or get_console()
        self._live: Any = None
        self._drawn = -_EVERY
        self._moved: list[tuple[logging.StreamHandler[Any], Any]] = []
        bar: Any = trainer.progress_bar_callback
        self._bar = bar if bar is not None and not bar.is_disabled else None
        if self._bar is not None:
            self._bar.disable()

    def show(self, log: RunLog | None, *, last: bool = False) -> None:
        """Draw a run, unless it was drawn less than a second ago.

        Args:
            log: The log of the run, or None if there is none yet.
            last: Whether this is the last time; the lines then stay on the screen.
        """
        if log is None or (monotonic() - self._drawn < _EVERY and not last):
            return
        from rich.text import Text

        shown = lines(log, self._console.width, time(), self._metrics())
        text = Text("\n".join(["", *shown] if last else ["", *shown, "", _KEYS]))
        if self._live is None:
            self._start(text)
        self._live.update(text, refresh=True)
        self._drawn = monotonic()

    def print(self, text: str) -> None:
        """Print a line above the view."""
        self._console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        """Stop drawing, and restore the terminal."""
        live, self._live = self._live, None
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
        if live is not None:
            with suppress(Exception):  # it draws once more, which may have just failed
                live.stop()

    def close(self) -> None:
        """Restore the terminal and the progress bar after training."""
        self.stop()
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.enable()

    def _start(self, text: Any) -> None:
        from rich.live import Live

        before = {sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__}
        self._live = Live(text, console=self._console, auto_refresh=False)
        self._live.start()
        # These handlers would write over the lines of the view.
        for handler in _stream_handlers():
            if handler.stream in before:
                self._moved.append((handler, handler.stream))
                handler.setStream(sys.stderr)

    def _metrics(self) -> dict[str, str]:
        """The user's own metrics from the progress bar."""
        trainer, bar = self._trainer, self._trainer.progress_bar_callback
        found: dict[str, Any]
        if bar is None:
            found = trainer.progress_bar_metrics
        else:
            found = bar.get_metrics(trainer, trainer.lightning_module)
        return {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in found.items()}


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    known = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [each for each in known if isinstance(each, logging.Logger)]
    handlers = {id(h): h for each in loggers for h in each.handlers}
    return [h for h in handlers.values() if type(h) is logging.StreamHandler]
