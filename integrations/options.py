"""Makes a configuration from the arguments of a callback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.forecast.predictors import make_predictor
from hybrid_predict.runs.objects import OBJECTS, made
from hybrid_predict.updates import make_update

FIELDS = frozenset(f.name for f in fields(HybridConfig))
_PATTERN = {"full_steps", "predict_steps"}
"""Fields that replace ``speedup``."""


def configuration(
    config: HybridConfig | Mapping[str, Any] | None, given: Mapping[str, Any]
) -> HybridConfig:
    """Return a configuration, with some fields overridden.

    Args:
        config: A configuration, its fields by name, or None for the defaults.
        given: Fields that override it.

    Raises:
        ConfigError: If a field is unknown or invalid.
    """
    chosen = dict(config) if isinstance(config, Mapping) else dict(vars(config or HybridConfig()))
    check_names("config", sorted(chosen.keys() | given.keys()), FIELDS)
    for one, other in ((_PATTERN, {"speedup"}), ({"speedup"}, _PATTERN)):
        if given.keys() & one:
            chosen = {k: v for k, v in chosen.items() if k not in other}
    checked = HybridConfig(**{**chosen, **given})
    checked = replace(checked, **{k: made(k, getattr(checked, k)) for k in OBJECTS})
    for choice in checked.predictors.values():
        make_predictor(choice)
    for choice in checked.updates.values():
        make_update(choice)
    return checked
