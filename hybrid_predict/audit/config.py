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

_ANY_TIME = (
    "seeds", "speedups", "margin", "retain", "alpha", "experiment", "mlflow", "controls",
)  # fmt: skip
"""Options that may change while finished arms stay valid; the arm of a control still depends on
what the control changes."""

_SET_BY_THE_AUDIT = (
    "speedup", "full_steps", "predict_steps", "total_steps", "enabled", "shadow",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Which runs an audit makes and how it judges them.

    Args:
        metric: Name under which the model logs the quality that is compared, in validation.
        mode: ``min`` if less of it is better, ``max`` if more is.
        seeds: Number of paired seeds, at least 1; they are 0, 1, 2 and so on. Fewer than 5 give a
            hint and no verdict.
        speedup: Steps per full step of the hybrid arm, above 1.
        speedups: What :func:`hybrid_predict.audit.search` chooses from, ascending and above 1.
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
            it changes: in a YAML file dotted keys and their values, in ``make_run`` whatever it
            makes of ``arm.changes``. They have no part in the verdict.
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
        self._check_speedups()
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

    def _check_speedups(self) -> None:
        given = self.speedups
        numbers = isinstance(given, (list, tuple)) and all(_number(s) and s > 1 for s in given)
        if not numbers or not given or list(given) != sorted(set(given)):
            raise ConfigError("speedups", "numbers above 1, ascending", given)
        object.__setattr__(self, "speedups", tuple(given))

    def hybrid_config(self) -> HybridConfig:
        """The configuration of the hybrid arm.

        Raises:
            ConfigError: If ``hybrid`` holds what cannot work.
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
        if self.hybrid.keys() & set(OBJECTS):  # the defaults are right, and torch is slow
            _check_choices(config)
        return config

    def corrected_config(self) -> HybridConfig:
        """The configuration of the corrected arm: the hybrid arm's without predicted steps."""
        return replace(self.hybrid_config(), speedup=1.0)

    def training(self) -> dict[str, Any]:
        """What finished arms depend on, as plain data: all but seeds, judging and controls."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if name not in _ANY_TIME}

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data."""
        values = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        chosen = self.hybrid_config().to_dict()
        plain = {
            "hybrid": {name: chosen[name] for name in self.hybrid},
            "scaled": list(self.scaled),
            "speedups": list(self.speedups),
            "controls": {name: dict(changes) for name, changes in self.controls.items()},
        }
        return {**values, **plain}


def _check_choices(config: HybridConfig) -> None:
    from hybrid_predict.forecast.predictors import make_predictor
    from hybrid_predict.updates import make_update

    for choice in config.predictors.values():
        make_predictor(choice)
    for choice in config.updates.values():
        make_update(choice)


def _check_controls(controls: Any) -> None:
    """Check names and contents of the further arms.

    Raises:
        ConfigError: If one cannot be an arm.
    """
    if not isinstance(controls, Mapping):
        raise ConfigError("controls", "a mapping from names to what is changed", controls)
    for name, changes in controls.items():
        # Names of folders and of MLflow's metrics are made of it.
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w ,.-]*", name) or name in ARMS:
            expected = f"a name of letters, digits and ' ,.-_', none of {', '.join(ARMS)}"
            raise ConfigError("controls", expected, name)
        if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
            raise ConfigError(f"controls.{name}", "a mapping from keys to values", changes)
        if not changes:
            remedy = "Without a change it is the full arm once more."
            raise ConfigError(f"controls.{name}", "a change", changes, remedy)


def _number(value: object) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and math.isfinite(value)  # type: ignore[arg-type]
