"""The configuration of a callback, from its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_predict.config import HybridConfig, check_names
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
    known = HybridConfig.__dataclass_fields__
    check_names("config", sorted(chosen.keys() | given.keys()), known)
    for one, other in ((_PATTERN, {"speedup"}), ({"speedup"}, _PATTERN)):
        if given.keys() & one:
            chosen = {name: value for name, value in chosen.items() if name not in other}
    return checked(HybridConfig(**{**chosen, **given}))


def checked(config: HybridConfig) -> HybridConfig:
    """Return a configuration whose updates and predictors exist; an engine would check them late.

    Raises:
        ConfigError: If one is neither a registered name nor an object.
    """
    for choice in config.updates.values():
        make_update(choice)
    if config.predictors is not None:
        # Runs without predicted steps import nothing about forecasts.
        from hybrid_predict.forecast.predictors import make_predictor

        for choice in config.predictors.values():
            make_predictor(choice)
    return config
