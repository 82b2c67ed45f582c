"""What the commands share that train: observers, quiet, Ctrl-C, the machine they ran on, JSON."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_CHATTY_LOGGERS = (
    "alembic",
    "lightning.fabric.utilities.seed",
    "lightning.pytorch.utilities.rank_zero",
    "mlflow.store.db.utils",
)
_ADVICE = ("does not have many workers", "GPU available but not used", "isinstance\\(treespec")


class Observer:
    """Is told what happens while arms are trained; does nothing."""

    def run_started(self, arm: str, seed: int, full_steps: int) -> None:
        """A run begins; it takes so many full steps if all forecasts are accepted."""

    def stepped(self, full_steps: int, loss: float) -> None:
        """A run has done so many full steps; called at some of them."""

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """A run is done, now or before an interruption; its entry of the results file."""


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back Lightning's banner and advice and MLflow's notes on its new database."""
    loggers = [logging.getLogger(name) for name in _CHATTY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in _ADVICE:
                warnings.filterwarnings("ignore", f".*{message}")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let torch compute in so many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C out as itself; Lightning leaves the process instead, deaf to further ones."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def environment() -> dict[str, Any]:
    """Versions and hardware that results depend on."""
    return {
        "hybrid_predict": version("hybrid-predict"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu() -> str:
    """The processor's model, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def finite(value: Any) -> Any:
    """The same plain data with None for numbers that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(value: Any, path: Path) -> Path:
    """Write plain data of finite numbers, complete or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return draft.replace(path)
