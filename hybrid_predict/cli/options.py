"""Types and checks of options, for all commands."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from hybrid_predict.errors import ConfigError, MissingExtraError

PROGRAM = "hybrid-predict"

# Modules that each extra installs and the commands import.
EXTRAS = {
    "cli": (
        "rich",
        "matplotlib",
        "jsonargparse",
        "docstring_parser",
        "scipy",
        "filelock",
        "jinja2",
    ),
    "lightning": ("lightning",),
    "huggingface": ("transformers", "accelerate"),
    "mlflow": ("mlflow",),
    "jax": ("jax", "optax"),
    "bench": ("schedulefree", "pytorch_optimizer", "opt_einsum", "sklearn"),
}

_HEAVY = ("lightning", "mlflow")
"""Extras that take seconds to import."""


def integer(text: str) -> int:
    """Parse the value of an option as an integer."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected an integer, got {text!r}") from None


def number(text: str) -> float:
    """Parse the value of an option as a number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from None


def check_threads(number: int | None) -> None:
    """Check the value of ``--threads``.

    Raises:
        ConfigError: If it is below 1.
    """
    if number is not None and number < 1:
        raise ConfigError("--threads", "an integer, at least 1", number)


def output_folder(name: str) -> Path:
    """Create the folder of ``--output-dir`` and check that it can be written to.

    Raises:
        ConfigError: If the folder cannot be created or written to.
    """
    from hybrid_predict.runs.runtime import writable_folder

    return writable_folder(name, "--output-dir")


def under_way(text: str) -> None:
    """Print to standard error what takes a while, if standard error is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{PROGRAM}: {text} …", file=sys.stderr, flush=True)


def need(feature: str, extras: Iterable[str]) -> None:
    """Import the packages of extras, so that an error names all missing extras at once.

    Args:
        feature: Name of what needs them, for the message.
        extras: Names of the extras.

    Raises:
        MissingExtraError: If a package of an extra is not installed.
    """
    missing, extras = [], list(extras)
    if heavy := [name for name in _HEAVY if name in extras]:
        under_way(f"loading {', '.join(heavy)}")
    for extra in extras:
        try:
            for module in EXTRAS[extra]:
                import_module(module)
        except ImportError:
            missing.append(extra)
    if missing:
        raise MissingExtraError(feature, ",".join(missing))
