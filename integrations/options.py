"""The arguments that all callbacks share: the configuration, and the folder of the run log."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from hybrid_predict.config import HybridConfig, check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.files import given_path
from hybrid_predict.updates import make_update

_PATTERN = {"full_steps", "predict_steps"}  # they replace ``speedup``


def configuration(config: HybridConfig | Mapping[str, Any] | None, **given: Any) -> HybridConfig:
    """Return a configuration with the fields given that are not None; or raise ConfigError."""
    given = {name: value for name, value in given.items() if value is not None}
    chosen = dict(config if isinstance(config, Mapping) else vars(config or HybridConfig()))
    check_names("config", sorted(chosen.keys() | given.keys()), HybridConfig.__dataclass_fields__)
    replaced = {"speedup"} if given.keys() & _PATTERN else set()
    if "speedup" in given:
        replaced |= _PATTERN
    kept = {name: value for name, value in chosen.items() if name not in replaced}
    return checked(HybridConfig(**{**kept, **given}))


def as_call(name: str, config: HybridConfig) -> str:
    """Return the call of a callback's class that gives it a configuration, with its speedup."""
    default = {**vars(HybridConfig()), "speedup": None}
    chosen = [f"{k}={v!r}" for k, v in vars(config).items() if v != default[k]]
    return f"{name}({', '.join(chosen)})"


def checked(config: HybridConfig) -> HybridConfig:
    """Return a configuration whose updates and predictors exist; or raise ConfigError, in time."""
    for choice in config.updates.values():
        make_update(choice)
    if config.predictors is not None:
        # Runs without predicted steps import nothing about forecasts.
        from hybrid_predict.forecast.predictors import make_predictor

        for choice in config.predictors.values():
            make_predictor(choice)
    return config


def checked_folder(log_dir: Any) -> str | None:
    """Return the folder of a run's log, "auto" or None; ConfigError if it is no path."""
    if not (log_dir is None or isinstance(log_dir, (str, PathLike))):
        raise ConfigError("log_dir", "a path, 'auto' or None", log_dir)
    return None if log_dir is None else str(given_path(log_dir))
