"""What the commands share: kinds of options, and checks before training."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from hybrid_predict.errors import MissingExtraError

PROGRAM = "hybrid-predict"

# Modules that are imported sooner or later, by the extra that brings them.
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
    "functional": ("array_api_compat",),
    "jax": ("jax", "optax", "array_api_compat"),
    "bench": ("schedulefree", "pytorch_optimizer", "opt_einsum", "sklearn"),
}

_HEAVY = ("lightning", "mlflow")
"""Extras whose import takes seconds."""


def integer(text: str) -> int:
    """An option's value as an integer."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected an integer, got {text!r}") from None


def number(text: str) -> float:
    """An option's value as a number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from None


def output_folder(name: str) -> Path:
    """The folder of ``--output-dir``, made and known to be writable before training begins.

    Raises:
        ConfigError: If it cannot be written to.
    """
    from hybrid_predict.runs.runtime import writable_folder

    return writable_folder(name, "--output-dir")


def under_way(text: str) -> None:
    """Say on a terminal what takes a while; pipes and files get the command's own output alone."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{PROGRAM}: {text} …", file=sys.stderr, flush=True)


def need(feature: str, extras: Iterable[str]) -> None:
    """Import what a command needs, so that whatever is missing is told at once.

    Args:
        feature: What is asked for, for the message.
        extras: The extras that bring it.

    Raises:
        MissingExtraError: If a package of theirs is not installed.
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
