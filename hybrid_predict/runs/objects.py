"""Makes objects from their description in a file: ``class_path`` and ``init_args``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from hybrid_predict.config import check_names
from hybrid_predict.errors import ConfigError, did_you_mean

OBJECTS = ("updates", "predictors")
"""Fields of the configuration that may hold an object for each kind."""


def find_class(name: str, described: Mapping[str, Any]) -> Any:
    """Return the class, or a function that makes objects, of ``class_path``.

    It is None for a name without a module.

    Args:
        name: Place of the description in the file, for messages.
        described: The description; its ``init_args`` are checked against the class.

    Raises:
        ConfigError: If the class cannot be imported, or does not have one of the arguments.
    """
    path = described["class_path"]
    module, _, wanted = path.rpartition(".")
    if not module:
        return None
    try:
        found = import_module(module)
    except (ImportError, TypeError, ValueError) as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        expected = "a class that can be imported"
        raise ConfigError(f"{name}.class_path", expected, path, remedy) from error
    if not hasattr(found, wanted):
        remedy = did_you_mean(wanted, dir(found))
        raise ConfigError(f"{name}.class_path", f"a class of {module}", wanted, remedy)
    if not callable(getattr(found, wanted)):
        raise ConfigError(f"{name}.class_path", "a class", path)
    arguments = described.get("init_args") or {}
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{name}.init_args", "a mapping of arguments", arguments)
    try:
        parameters = inspect.signature(getattr(found, wanted)).parameters
    except ValueError:  # classes written in C have none
        return getattr(found, wanted)
    if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        check_names(f"{name}.init_args", arguments, parameters)
    return getattr(found, wanted)


def made(name: str, choices: Any) -> Any:
    """Return choices by kind, with objects in place of their descriptions.

    Args:
        name: Place of the choices in the file, for messages.
        choices: Names, objects, or descriptions, by parameter kind.

    Raises:
        ConfigError: If a class cannot be imported, or does not take its arguments.
    """
    if not isinstance(choices, Mapping):
        return choices
    return {kind: _made(f"{name}.{kind}", choice) for kind, choice in choices.items()}


def _made(name: str, choice: Any) -> Any:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("class_path"), str):
        return choice
    check_names(name, choice, ("class_path", "init_args"))
    found = find_class(name, choice)
    if found is None:
        return choice
    try:
        return found(**(choice.get("init_args") or {}))
    except TypeError as error:
        expected = f"arguments of {found.__name__}"
        remedy = f"Python says: {error}."
        given = choice.get("init_args")
        raise ConfigError(f"{name}.init_args", expected, given, remedy) from error
