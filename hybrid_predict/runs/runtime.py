"""Shared by commands that train: log levels, locks, environment, JSON, finished runs.

Imports torch late.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Generic, TypeVar

from hybrid_predict import __version__
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.files import given_path, named, replace_text

RUNS = "runs.jsonl"
"""Name of the file of finished runs in an output folder."""

Key = TypeVar("Key")

logger = logging.getLogger(__name__)

_CHATTY_LOGGERS = {
    "alembic": logging.WARNING,
    "lightning.fabric.utilities.seed": logging.WARNING,
    "lightning.pytorch.loggers.mlflow": logging.ERROR,
    "lightning.pytorch.trainer.connectors.signal_connector": logging.WARNING,
    "lightning.pytorch.utilities.rank_zero": logging.WARNING,
    "mlflow.store.db.utils": logging.WARNING,
}
"""Lowest levels that commands that train show of these loggers; one warns of a new experiment."""

_VARIABLES = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
"""What ``seed_everything`` sets in the environment."""

_ADVICE = (
    ".*(does not have many workers|GPU available but not used|isinstance\\(treespec|"
    "smaller than the logging interval)"
)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's banner and advice, and MLflow's notes on its database."""
    before = {name: logging.getLogger(name).level for name in _CHATTY_LOGGERS}
    for name, level in _CHATTY_LOGGERS.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _ADVICE)
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore random states, and Lightning's variables of seeds, after the block."""
    import torch

    from hybrid_predict.tensors.random_states import random_states, set_random_states

    if torch.cuda.is_available():
        torch.cuda.init()  # the block may, and then its random states count too
    states = random_states()
    variables = {name: os.environ.pop(name, None) for name in _VARIABLES}
    try:
        yield
    finally:
        set_random_states(states)
        for name, text in variables.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text


@contextmanager
def collected(messages: list[str]) -> Iterator[None]:
    """Collect the plug-in's warnings inside the block instead of showing them, or any others."""
    package = logging.getLogger("hybrid_predict")
    propagate = package.propagate
    collector = BufferingHandler(sys.maxsize)
    collector.setLevel(logging.WARNING)
    package.propagate = False
    package.addHandler(collector)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        package.removeHandler(collector)
        package.propagate = propagate
        messages += [record.getMessage() for record in collector.buffer]
        messages += [str(each.message) for each in caught if "HybridPredict" in str(each.message)]


def writable_folder(folder: str | Path, argument: str = "folder") -> Path:
    """Create a folder if it is missing, and check that it can be written to; ``~`` is known.

    Raises:
        ConfigError: If the folder cannot be created or written to.
    """
    place = given_path(folder)
    with named(folder, "a folder that can be written to", argument):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder inside the block; after a crash the system releases the lock.

    Raises:
        ConfigError: If another process, or another block of this one, holds the lock.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout as error:
        expected = "one that no other run is writing to"
        remedy = "Wait for the end of that run, or choose another folder."
        raise ConfigError("folder", expected, str(folder), remedy) from error


def environment() -> dict[str, Any]:
    """Return the versions and the hardware that results depend on."""
    import torch

    return {
        "hybrid_predict": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": _version("lightning"),
        "transformers": _version("transformers"),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _cpu() -> str:
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
    return replace_text(path, json.dumps(finite(value), indent=2) + "\n")


def json_line(entry: Mapping[str, Any]) -> str:
    """Return an entry as a line of JSON; numbers that are not finite become None."""
    return json.dumps(finite(entry), default=str) + "\n"


def append_line(path: Path, text: str) -> None:
    """Append a line that :func:`json_line` made; one that a crash has cut off stays apart.

    Raises:
        OSError: If the file cannot be written.
    """
    line = text.encode()
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else b"\n" + line
        file.write(line)


def read_json_lines(path: Path) -> Iterator[Any]:
    """Read the entries of a file of lines; None for a line that is no JSON, as after a crash."""
    for line in path.read_bytes().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            yield None


class Rows(Generic[Key]):
    """Finished runs by key, one JSON line each, in a file that need not exist.

    A damaged line, as after a crash, is skipped with a warning; its run is trained again. A line
    from which ``key`` cannot return the run's key counts as damaged.
    """

    def __init__(self, path: Path, key: Callable[[Mapping[str, Any]], Key]) -> None:
        self.path = path
        self.done: dict[Key, dict[str, Any]] = {}
        self._key = key
        with named(path, "a file that can be read"):
            rows = list(read_json_lines(path)) if path.exists() else []
        for number, row in enumerate(rows, 1):
            try:
                self.done[key(row)] = row
            except (ValueError, LookupError, TypeError, AttributeError):
                logger.warning("%s, line %d is not a finished run; it is skipped.", path, number)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; numbers that are not finite become None.

        Raises:
            ConfigError: If the file cannot be written; the rows before it are kept.
        """
        kept: dict[str, Any] = finite(row)
        with named(self.path):
            append_line(self.path, json_line(kept))
        self.done[self._key(kept)] = kept
