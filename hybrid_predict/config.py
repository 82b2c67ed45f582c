"""How a run is configured: one frozen dataclass, validated when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Literal

from hybrid_predict.errors import ConfigError

KINDS = ("hidden", "embedding", "head", "vector")
"""Parameter kinds: hidden matrices, embeddings, the output head, biases and norm gains."""

POLICIES = ("keep", "advance", "implied")
"""What happens to the optimizer's moments and step counts after a long forecast."""

HISTORY_DTYPES = ("float32", "bfloat16")
"""How the histories of predictors may be stored."""


@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """Everything that decides how forecasts are made, verified and credited.

    Args:
        speedup: The run ends after ``total_steps / speedup`` full steps if all forecasts are
            accepted; at least 1. With 1 nothing is compressed: same full steps, better weights.
            ``"auto"`` compresses as far as every forecast supports
            (:func:`hybrid_predict.support.support`).
        total_steps: Length of the run in equivalent steps (optimizer updates of the plain run). The
            Lightning callback fills it in from the Trainer.
        enabled: ``False`` leaves training bit-identical, random state included.
        shadow: Make and score forecasts, but never move a weight and never compress the clock.
        predictors: Predictor per parameter kind, by registered name or as an object; a kind that
            is not listed is left alone.
        horizon: Horizon rule, by registered name or as an object.
        kinds: Overrides of the automatic classification, glob pattern over parameter names to kind;
            the first pattern that matches wins.
        warmup_fraction: Share of the clock at the start in which the predictor only observes.
        cooldown_fraction: Share of the clock at the end that is left to plain full steps.
        period: One forecast per this many full steps.
        correct_steps: Full steps without forecast after each period.
        policy: Optimizer state after a forecast of at least ``long_horizon``: ``keep`` moments and
            counts, ``advance`` the counts by the horizon, or moments ``implied`` by the forecast.
        long_horizon: Horizon (optimizer updates) from which ``policy`` applies.
        history_dtype: How predictors store their histories: ``float32``, or ``bfloat16`` in half
            the memory, for averages with a decay of at most 0.95; arithmetic is in 32 bits.
        sample_every: Measure alignment at every n-th forecast.
        lag: Full steps between a measurement on the device and its reading, so that the device
            never waits. ``None``: 0 on the CPU, 4 elsewhere.
        patience: So many rejected forecasts in a row hand over to plain training for good.
        loss_tolerance: Reject a forecast that raises the loss on the coming batch by more than this
            fraction; ``None`` disables the check. Costs two forward-only passes per check and
            waits for the device.
        loss_check_every: Check the loss at every n-th forecast.
        count_flops: Count the floating point operations of one full step and of one forecast, and
            warn if forecasts take more than they save.

    Raises:
        ConfigError: If a value is out of range.
    """

    speedup: float | Literal["auto"] = 1.5
    total_steps: int | None = None
    enabled: bool = True
    shadow: bool = False
    predictors: Mapping[str, Any] = field(default_factory=lambda: {"hidden": "spectral"})
    horizon: Any = "alignment"
    kinds: Mapping[str, str] = field(default_factory=dict)
    warmup_fraction: float = 0.0
    cooldown_fraction: float = 0.05
    period: int = 1
    correct_steps: int = 0
    policy: str = "keep"
    long_horizon: float = 8.0
    history_dtype: str = "float32"
    sample_every: int = 1
    lag: int | None = None
    patience: int = 32
    loss_tolerance: float | None = None
    loss_check_every: int = 50
    count_flops: bool = True

    def __post_init__(self) -> None:
        if self.speedup != "auto":
            remedy = 'Or let the run decide with speedup="auto".'
            _check_number("speedup", self.speedup, 1.0, math.inf, remedy)
        _check_number("long_horizon", self.long_horizon, 0.0, math.inf)
        for name in ("warmup_fraction", "cooldown_fraction"):
            _check_number(name, getattr(self, name), 0.0, 1.0)
        if self.warmup_fraction + self.cooldown_fraction > 1.0:
            raise ConfigError(
                "cooldown_fraction",
                "warmup_fraction + cooldown_fraction <= 1",
                self.warmup_fraction + self.cooldown_fraction,
                "Lower one of them.",
            )
        if self.loss_tolerance is not None:
            _check_number("loss_tolerance", self.loss_tolerance, 0.0, math.inf)
        lowest = {"period": 1, "sample_every": 1, "patience": 1, "loss_check_every": 1}
        for name, least in {**lowest, "correct_steps": 0}.items():
            _check_integer(name, getattr(self, name), least)
        for name, least in {"total_steps": 1, "lag": 0}.items():
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), least)
        for name in ("enabled", "shadow", "count_flops"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))
        _check_mapping("predictors", self.predictors, keys=KINDS)
        _check_mapping("kinds", self.kinds, values=KINDS)
        for pattern in self.kinds:
            if not isinstance(pattern, str):
                raise ConfigError("kinds", "glob patterns over parameter names", pattern)
        for name, known in {"policy": POLICIES, "history_dtype": HISTORY_DTYPES}.items():
            if getattr(self, name) not in known:
                raise ConfigError(name, f"one of {', '.join(known)}", getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, for logs and results files."""
        return {name: _plain(getattr(self, name)) for name in type(self).__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **asdict(value)}
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _check_number(name: str, value: object, least: float, most: float, remedy: str = "") -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (good and math.isfinite(value) and least <= value <= most):  # type: ignore[arg-type, operator]
        upper = "" if math.isinf(most) else f" and at most {most:g}"
        raise ConfigError(name, f"a finite number, at least {least:g}{upper}", value, remedy)


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, f"an integer, at least {least}", value)


def _check_mapping(
    name: str,
    value: object,
    keys: tuple[str, ...] | None = None,
    values: tuple[str, ...] | None = None,
) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(name, "a mapping", value)
    for allowed, found in ((keys, value.keys()), (values, value.values())):
        for item in found if allowed else ():
            if item not in allowed:  # type: ignore[operator]
                raise ConfigError(name, f"parameter kinds out of {', '.join(KINDS)}", item)
