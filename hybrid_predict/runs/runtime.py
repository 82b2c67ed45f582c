"""Shared by commands that train: log levels, locks, environment, JSON. Imports torch late."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hybrid_predict.errors import ConfigError, MissingExtraError
from hybrid_predict.runs.files import given_path, named, replace_text

_CHATTY_LOGGERS = {
    "alembic": logging.WARNING,
    "lightning.fabric.utilities.seed": logging.WARNING,
    "lightning.pytorch.trainer.connectors.signal_connector": logging.WARNING,
    "lightning.pytorch.utilities.rank_zero": logging.WARNING,
    "mlflow.store.db.utils": logging.WARNING,
}
"""Levels of loggers in commands that train."""

_ADVICE = (
    "does not have many workers",
    "GPU available but not used",
    "isinstance\\(treespec",
    "smaller than the logging interval",
)


@contextmanager
def quiet(*muted: str) -> Iterator[None]:
    """Silence Lightning's banner and advice, MLflow's notes on its database, and ``muted`` loggers.

    Of the last, only errors are shown.
    """
    wanted = {**_CHATTY_LOGGERS, **dict.fromkeys(muted, logging.ERROR)}
    levels = {name: logging.getLogger(name).level for name in wanted}
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings():
            for message in _ADVICE:
                warnings.filterwarnings("ignore", f".*{message}")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def collected(messages: list[str]) -> Iterator[None]:
    """Collect the plug-in's warnings inside the block instead of showing them."""
    package = logging.getLogger("hybrid_predict")
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    propagate = package.propagate
    package.propagate = False
    package.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        texts = (str(warning.message) for warning in caught)
        messages += [text for text in texts if "HybridPredict" in text]
    finally:
        package.removeHandler(listener)
        package.propagate = propagate


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads inside the block; None leaves it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def writable_folder(folder: str | Path, argument: str = "folder") -> Path:
    """Create a folder if it is missing, and check that it can be written to; ``~`` is known.

    Raises:
        ConfigError: If the folder cannot be created or written to.
    """
    place = given_path(argument, folder)
    with named(argument, "a folder that can be written to", folder):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder inside the block; after a crash the system releases the lock.

    Raises:
        ConfigError: If another process, or another block of this one, holds the lock.
        MissingExtraError: If filelock is not installed.
    """
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise MissingExtraError("A locked folder", "cli") from error
    try:
        held = FileLock(folder / ".lock", timeout=0).acquire()
    except Timeout as error:
        expected = "one that no other run is writing to"
        remedy = "Wait for the end of that run, or choose another folder."
        raise ConfigError("folder", expected, str(folder), remedy) from error
    except (OSError, NotImplementedError) as error:
        remedy = f"The system says: {error}."
        raise ConfigError("folder", "one that can be locked", str(folder), remedy) from error
    with held:
        yield


def environment() -> dict[str, Any]:
    """Return the versions and the hardware that results depend on."""
    import torch

    return {
        "hybrid_predict": _version("hybrid-predict"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": _version("lightning"),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _cpu() -> str:
    """Return the model of the processor, or its architecture if the model is not known."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def finite(value: Any) -> Any:
    """Return plain data with None in place of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(value: Any, path: Path) -> Path:
    """Write plain data, complete or not at all; numbers that are not finite become None.

    Raises:
        ConfigError: If the file cannot be written; an earlier file is kept.
    """
    return replace_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")
