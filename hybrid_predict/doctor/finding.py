"""Finds the function that a command names, and calls it; says what to type where it cannot."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_predict.errors import ConfigError, did_you_mean

_LINE = "Type: hybrid-predict doctor"

EXPECTED = "FILE:FUNCTION, a function that takes no arguments and returns the Trainer"


def call(name: str) -> Any:
    """Return what a function returns; ``name`` is ``file.py:function`` or ``module:function``.

    Raises:
        ConfigError: If there is no such function, its module cannot be imported, or it needs
            arguments.
    """
    place, _, function = name.rpartition(":") if ":" in name else (name, "", "")
    path = Path(place)
    source = path.suffix == ".py" and path.is_file()
    if source:
        sys.path.insert(0, str(path.parent))
    module = path.stem if source else place
    suggestion = f"{_LINE} {function}:{place}" if _found(function) else _suggestion(place, module)
    if not (function and module):
        raise ConfigError("CONFIG", EXPECTED, name, suggestion)
    made = imported = _imported(module, name, suggestion)
    try:
        for part in function.split("."):
            made = getattr(made, part)
    except AttributeError:
        remedy = did_you_mean(function, vars(imported)) or suggestion
        raise ConfigError("CONFIG", f"a function in {place}", function, remedy) from None
    if not callable(made):
        raise ConfigError("CONFIG", EXPECTED, made, suggestion)
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        given = f"{function}{inspect.signature(made)}"
        remedy = (
            f"Python says: {error}. Write a function without arguments that returns "
            f"{function}(...) with yours, and name that one."
        )
        raise ConfigError("CONFIG", EXPECTED, given, remedy) from error
    return made()


def _imported(module: str, name: str, suggestion: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:
        if not _found(module):
            raise ConfigError("CONFIG", EXPECTED, name, suggestion) from error
        told = f"Python says: {type(error).__name__}: {error}."
        remedy = f'{told} To see where: python -c "import {module}"'
        raise ConfigError("CONFIG", "a module that can be imported", module, remedy) from error


def _found(module: str) -> ModuleSpec | None:
    """Return what Python finds as a module of this name; its parents are imported."""
    with suppress(ImportError, ValueError):
        return find_spec(module)
    return None


def _suggestion(place: str, module: str) -> str:
    """Return the line to type for a module, which the user has written as ``place``."""
    if _found(module) is None:
        return f"{_LINE} FILE.py:FUNCTION, with the path of a file that exists"
    return f"{_LINE} {place}:FUNCTION"
