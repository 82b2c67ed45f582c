"""Makes a configuration from the arguments of a callback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.runs.objects import OBJECTS, objects
from hybrid_predict.updates import make_update

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
    names = {field.name for field in fields(HybridConfig)}
    check_names("config", sorted(chosen.keys() | given.keys()), names)
    for one, other in ((_PATTERN, {"speedup"}), ({"speedup"}, _PATTERN)):
        if given.keys() & one:
            chosen = {name: value for name, value in chosen.items() if name not in other}
    checked = HybridConfig(**{**chosen, **given})
    checked = replace(checked, **{name: objects(name, getattr(checked, name)) for name in OBJECTS})
    for choice in checked.predictors.values():
        make_predictor(choice)
    for choice in checked.updates.values():
        make_update(choice)
    return checked
