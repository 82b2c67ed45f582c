"""Makes configurations, and objects from ``class_path`` and ``init_args`` in a file."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.errors import ConfigError, did_you_mean

OBJECTS = {
    "updates": "hybrid_predict.updates.AbstractUpdate",
    "predictors": "hybrid_predict.forecast.predictors.AbstractPredictor",
}
"""Fields of the configuration that may hold an object for each kind, and the class of these."""


_PATTERN = {"full_steps", "predict_steps"}
"""Fields that replace ``speedup``."""


def configuration(config: HybridConfig | Mapping[str, Any] | None, **given: Any) -> HybridConfig:
    """Return a configuration, with some fields overridden.

    Args:
        config: A configuration, its fields by name, or None for the defaults.
        **given: Fields that override it, unless they are None.

    Raises:
        ConfigError: If a field is unknown or invalid.
    """
    given = {name: value for name, value in given.items() if value is not None}
    chosen = dict(config if isinstance(config, Mapping) else vars(config or HybridConfig()))
    known = HybridConfig.__dataclass_fields__
    check_names("config", sorted(chosen.keys() | given.keys()), known)
    for one, other in ((_PATTERN, {"speedup"}), ({"speedup"}, _PATTERN)):
        if given.keys() & one:
            chosen = {name: value for name, value in chosen.items() if name not in other}
    return with_objects(HybridConfig(**{**chosen, **given}))


def with_objects(
    config: HybridConfig, names: Iterable[str] = tuple(OBJECTS), within: str = ""
) -> HybridConfig:
    """Return a configuration with objects in place of their descriptions.

    Args:
        config: The configuration.
        names: Fields to look at, of :data:`OBJECTS`. Checking one imports torch.
        within: Place of the fields in the file, ending in a dot, for messages.

    Raises:
        ConfigError: If an update or a predictor does not exist, or an object cannot be created.
    """
    values = {name: getattr(config, name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    chosen = {name: objects(name, value, within) for name, value in given.items()}
    if chosen:
        from hybrid_predict.forecast.predictors import make_predictor
        from hybrid_predict.updates import make_update

        make = {"updates": make_update, "predictors": make_predictor}
        for name, choices in chosen.items():
            for choice in choices.values():
                make[name](choice)
    return replace(config, **chosen)


def find_class(name: str, described: Mapping[str, Any], base: str | None = None) -> Any:
    """Return the class, or a function that makes objects, of ``class_path``.

    It is None for a name without a module. The module is imported; nothing of it is called. With
    ``base``, the path of a class, only classes that are derived from it are accepted.

    Raises:
        ConfigError: If the class cannot be imported, is not derived from ``base``, or does not
            have one of the arguments. It names the description's place in the file, ``name``.
    """
    path, arguments = described["class_path"], described.get("init_args") or {}
    if "." not in path:
        return None
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{name}.init_args", "a mapping of arguments", arguments)
    cls = _imported(f"{name}.class_path", path)
    if base is not None:
        parent = _imported(name, base)
        if not (isinstance(cls, type) and issubclass(cls, parent)):
            remedy = f"Derive a class from hybrid_predict.{parent.__name__}."
            expected = f"a subclass of {parent.__name__}"
            raise ConfigError(f"{name}.class_path", expected, path, remedy)
    if not callable(cls):
        raise ConfigError(f"{name}.class_path", "a class", path)
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:  # classes written in C have none
        return cls
    if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        check_names(f"{name}.init_args", arguments, parameters)
    return cls


def _imported(name: str, path: str) -> Any:
    module_name, _, attribute = path.rpartition(".")
    try:
        module = import_module(module_name)
    except (ImportError, TypeError, ValueError) as error:
        remedy = f"Python says: {error}. Start the command in the folder of the module."
        raise ConfigError(name, "a class that can be imported", path, remedy) from error
    if not hasattr(module, attribute):
        remedy = did_you_mean(attribute, dir(module))
        raise ConfigError(name, f"a class of {module_name}", attribute, remedy)
    return getattr(module, attribute)


def objects(field: str, choices: Any, within: str = "") -> Any:
    """Return choices by parameter kind, with objects in place of their descriptions.

    ``field`` is one of :data:`OBJECTS`; only classes derived from its class are called. ``within``
    is the field's place in the file, ending in a dot.

    Raises:
        ConfigError: If a class cannot be imported, is of another kind, or does not take its
            arguments.
    """
    if not isinstance(choices, Mapping):
        return choices
    return {
        kind: _object(f"{within}{field}.{kind}", choice, OBJECTS[field])
        for kind, choice in choices.items()
    }


def _object(name: str, choice: Any, base: str) -> Any:
    if not isinstance(choice, Mapping) or not isinstance(choice.get("class_path"), str):
        return choice
    check_names(name, choice, ("class_path", "init_args"))
    cls, arguments = find_class(name, choice, base), choice.get("init_args") or {}
    if cls is None:
        return choice
    try:
        return cls(**arguments)
    except TypeError as error:
        expected, remedy = f"arguments of {cls.__name__}", f"Python says: {error}."
        raise ConfigError(f"{name}.init_args", expected, arguments, remedy) from error
