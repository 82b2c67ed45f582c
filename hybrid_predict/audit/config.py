"""What an audit compares and how it judges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hybrid_predict.config import Described, HybridConfig, check_names
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import ARMS, CORRECTED, SHORT
from hybrid_predict.runs.objects import OBJECTS, made

SHORTENED = (SHORT, CORRECTED)
"""The arms whose schedule is shortened."""

_TRAINING = ("metric", "mode", "hybrid", "scaled")
"""Options that all finished runs depend on."""

_SET_BY_THE_AUDIT = (
    "speedup", "full_steps", "predict_steps", "total_steps", "enabled", "shadow",
)  # fmt: skip


def shortened(number: int, speedup: float) -> int:
    """Return the steps or epochs of a short arm, rounded up, from those of the full arm."""
    # The speedup is rarely a binary fraction: 33 / 1.1 has to be 30.
    return math.ceil(number / speedup - 1e-9)


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Configures which runs an audit trains and how it judges them.

    Args:
        metric: Name under which the model logs, in validation, the quality that is compared.
        mode: ``min`` if less of it is better, ``max`` if more is.
        seeds: Number of paired seeds, at least 1; they are 0, 1, 2 and so on. Fewer than 5 give a
            hint and no verdict.
        speedup: Steps per full step of the hybrid arm, above 1.
        speedups: Candidates of :func:`hybrid_predict.audit.search`, ascending and above 1.
        margin: Loss of quality, in units of the metric, up to which the hybrid arm counts as equal
            to the full arm; above 0. ``None`` judges by ``retain`` instead.
        retain: Share of what the saved steps are worth, that is of the difference between the short
            and the full arm, that the hybrid arm has to keep; above 0 and at most 1.
        alpha: One-sided level of each test, above 0 and below 0.5.
        hybrid: Further arguments of :class:`hybrid_predict.HybridConfig`, for the corrected and the
            hybrid arm.
        scaled: In a YAML file, dotted keys of integers that count steps or epochs of the schedule,
            which short arms have to shorten; for example ``model.init_args.total_steps``.
        controls: Further arms of plain training, as long as the full arm, by name, each with what
            it changes: in a YAML file dotted keys and their values, in ``make_run`` the content of
            ``arm.changes``. They are not part of the verdict.
        experiment: Name of the MLflow experiment, and title of the report.
        mlflow: Whether to record the runs in MLflow.

    Raises:
        ConfigError: If a value is out of range.
    """

    metric: str = "val_loss"
    mode: Literal["min", "max"] = "min"
    seeds: int = 5
    speedup: float = 1.5
    speedups: tuple[float, ...] = (1.25, 1.5, 2.0, 3.0)
    margin: float | None = None
    retain: float = 0.8
    alpha: float = 0.05
    hybrid: Described = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    controls: Mapping[str, Described] = field(default_factory=dict)
    experiment: str = "hybrid-predict audit"
    mlflow: bool = True

    def __post_init__(self) -> None:
        for name in ("metric", "experiment"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(name, "a name", value)
        if self.mode not in ("min", "max"):
            raise ConfigError("mode", "'min' or 'max'", self.mode)
        if not isinstance(self.seeds, int) or isinstance(self.seeds, bool) or self.seeds < 1:
            raise ConfigError("seeds", "an integer, at least 1", self.seeds)
        if not isinstance(self.mlflow, bool):
            raise ConfigError("mlflow", "True or False", self.mlflow)
        if not (_number(self.speedup) and self.speedup > 1):
            raise ConfigError("speedup", "a finite number above 1", self.speedup)
        given = self.speedups
        numbers = isinstance(given, (list, tuple)) and all(_number(s) and s > 1 for s in given)
        if not numbers or not given or list(given) != sorted(set(given)):
            raise ConfigError("speedups", "numbers above 1, ascending", given)
        object.__setattr__(self, "speedups", tuple(given))
        if self.margin is not None and not (_number(self.margin) and self.margin > 0):
            raise ConfigError("margin", "a finite number above 0, or None", self.margin)
        if not (_number(self.retain) and 0 < self.retain <= 1):
            raise ConfigError("retain", "a number above 0 and at most 1", self.retain)
        if not (_number(self.alpha) and 0 < self.alpha < 0.5):
            raise ConfigError("alpha", "a number above 0 and below 0.5", self.alpha)
        if isinstance(self.scaled, str) or not all(isinstance(key, str) for key in self.scaled):
            raise ConfigError("scaled", "a list of dotted keys", self.scaled)
        object.__setattr__(self, "scaled", tuple(self.scaled))
        _check_controls(self.controls)
        self.hybrid_config()

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, in the order in which each seed trains them."""
        return (*ARMS, *self.controls)

    @property
    def sign(self) -> float:
        """Factor that turns the metric into one of which less is better."""
        return 1.0 if self.mode == "min" else -1.0

    def hybrid_config(self) -> HybridConfig:
        """Return the configuration of the hybrid arm.

        Raises:
            ConfigError: If ``hybrid`` has a wrong name or value.
        """
        if not isinstance(self.hybrid, Mapping):
            raise ConfigError("hybrid", "a mapping", self.hybrid)
        allowed = [n for n in HybridConfig.__dataclass_fields__ if n not in _SET_BY_THE_AUDIT]
        check_names("hybrid", self.hybrid, allowed)
        config = HybridConfig(speedup=self.speedup, **self.hybrid)
        objects = {k: made(k, self.hybrid[k], "hybrid.") for k in OBJECTS if k in self.hybrid}
        config = replace(config, **objects)
        if not config.predictors:
            remedy = "Without predicted steps the hybrid arm saves no full step."
            raise ConfigError("hybrid", "a predictor of some kind", config.predictors, remedy)
        if objects:  # the defaults need no check, and torch is slow to import
            _check_choices(config)
        return config

    def corrected_config(self) -> HybridConfig:
        """Return the configuration of the corrected arm: the hybrid arm's without predictions."""
        return replace(self.hybrid_config(), speedup=1.0)

    def training(self) -> dict[str, Any]:
        """Return the options that all finished runs depend on, as plain data."""
        values = self.to_dict()
        return {name: values[name] for name in _TRAINING}

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data."""
        chosen = self.hybrid_config().to_dict()
        return {
            **{name: getattr(self, name) for name in type(self).__dataclass_fields__},
            "hybrid": {name: chosen[name] for name in self.hybrid},
            "scaled": list(self.scaled),
            "speedups": list(self.speedups),
            "controls": {name: dict(changes) for name, changes in self.controls.items()},
        }


def _check_choices(config: HybridConfig) -> None:
    """Check that updates and predictors exist."""
    from hybrid_predict.forecast.predictors import make_predictor
    from hybrid_predict.updates import make_update

    for predictor in config.predictors.values():
        make_predictor(predictor)
    for update in config.updates.values():
        make_update(update)


def _check_controls(controls: Any) -> None:
    """Check names and contents of the further arms."""
    if not isinstance(controls, Mapping):
        raise ConfigError("controls", "a mapping from names to what is changed", controls)
    for name, changes in controls.items():
        # Names of folders and of MLflow's metrics contain it.
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w ,.-]*", name) or name in ARMS:
            expected = f"a name of letters, digits and ' ,.-_', none of {', '.join(ARMS)}"
            raise ConfigError("controls", expected, name)
        if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
            raise ConfigError(f"controls.{name}", "a mapping from keys to values", changes)
        if not changes:
            remedy = "Without a change it is the full arm again."
            raise ConfigError(f"controls.{name}", "a change", changes, remedy)


def _number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and math.isfinite(value)
