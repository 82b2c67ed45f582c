"""Where a Lightning Trainer shows a run: its lines, its progress bar, the folder of its log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hybrid_predict.integrations.lightning_packages import package_of

if TYPE_CHECKING:
    import lightning.pytorch as pl


def event_folder(trainer: pl.Trainer, log_dir: str | None) -> Path | None:
    """Return the folder for the log of a run, or None; ``auto`` is that of the first logger."""
    if log_dir != "auto":
        return None if log_dir is None else Path(log_dir)
    folders = [getattr(each, "log_dir", None) for each in trainer.loggers]
    folder = next((each for each in folders if isinstance(each, str)), "://")
    return None if "://" in folder else Path(folder)


@final
class TrainerScreen:
    """The progress bar of a Trainer, and the stream of its own lines."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._bar = trainer.progress_bar_callback

    def show(self, values: Callable[[], dict[str, str]]) -> None:
        """Show values in the progress bar from now on, after the user's metrics."""
        if self._bar is None:
            return
        get_metrics = self._bar.get_metrics

        def extended(*args: Any, **options: Any) -> dict[str, Any]:
            metrics = get_metrics(*args, **options)
            return {**metrics, **{k: v for k, v in values().items() if k not in metrics}}

        vars(self._bar)["get_metrics"] = extended

    def restore(self) -> None:
        """Leave the progress bar as it was before."""
        if self._bar is not None:
            vars(self._bar).pop("get_metrics", None)

    def say(self, text: str, *, live: bool = False) -> None:
        """Print one line on rank 0; ``live`` above a progress bar."""
        package = package_of(self._trainer)
        bar = self._bar
        if bar is None or not self._trainer.is_global_zero:
            package.utilities.rank_zero_info(text)
            return
        name = f"{package.__name__}.utilities.rank_zero"
        if logging.getLogger(name).isEnabledFor(logging.INFO):
            # A logging handler may write to a stream that the progress bar overwrites.
            (bar.print if live else print)(text, file=sys.stderr)
