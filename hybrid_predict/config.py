"""How a run is configured: one frozen dataclass, validated when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import wraps
from inspect import signature
from typing import Any, Literal, TypeVar

from hybrid_predict.errors import ConfigError, did_you_mean

KINDS = ("hidden", "embedding", "head", "vector")
"""Parameter kinds: hidden matrices, embeddings, the output head, biases and norm gains."""

HISTORY_DTYPES = ("float32", "bfloat16")
"""How averages of gradients and displacements may be stored."""


T = TypeVar("T")


def check_names(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check that names are known.

    Raises:
        ConfigError: If one is not, with the nearest that is.
    """
    names = sorted(known)
    for name in given:
        if name not in names:
            remedy = did_you_mean(name, names) or f"It has {', '.join(names)}."
            raise ConfigError(owner, "names that it has", name, remedy)


def tells_unknown_names(cls: type[T]) -> type[T]:
    """Let a class tell of an argument that it does not have, with the nearest that it has."""
    made, known = cls.__init__, signature(cls).parameters

    @wraps(made)
    def init(self: Any, *args: Any, **values: Any) -> None:
        check_names(cls.__name__, values, known)
        made(self, *args, **values)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@tells_unknown_names
@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """What a run corrects, what it predicts, and how many of its steps.

    Args:
        speedup: Steps of the run per full step, a number of at least 1: a run of N steps plans
            N - round(N / speedup) predicted steps, of which those are made whose forecasts have
            skill. 1 predicts nothing. ``"auto"`` plans as many as the default does.
        full_steps: Said directly, in place of ``speedup`` and together with ``predict_steps``: so
            many full steps before each group of predicted steps, at least 1.
        predict_steps: Predicted steps after each ``full_steps`` full steps, at least 1.
        warmup_steps: Steps at the start without predicted steps, at least; an integer, or a float
            in [0, 1) as a share of the run. Where predicted steps need skill, the warm-up lasts
            until it can be known.
        cooldown_steps: Steps at the end that are left to the user's own training, without predicted
            steps and corrected updates; an integer, or a float in [0, 1) as a share of the run.
        total_steps: N, the run's length in steps. The Lightning callback takes it from the Trainer.
        enabled: ``False`` leaves training bit-identical, random state included.
        shadow: Forecast and measure, but never move a weight: training stays bit-identical.
        updates: Corrected update per parameter kind, by registered name or as an object; kinds that
            are not listed keep the optimizer's update.
        predictors: Predictor per parameter kind, by registered name or as an object; kinds that are
            not listed are not moved by predicted steps.
        kinds: Overrides of the automatic classification, glob pattern over parameter names to kind;
            the first pattern that matches wins.
        max_overhead: Operations that corrected updates may add, as a share of those of a full step.
            These are counted in the first full step, as 1e8 at least; where correcting in full
            takes more, fewer rows of a matrix are treated together, and where too few are left,
            predicted steps that need skill are not made. Not negative; 1e9 corrects in full always.
        history_dtype: How averages are stored: ``float32``, or ``bfloat16`` in half the memory, for
            averages with a decay of at most 0.95; arithmetic is in 32 bits.
        lag: Full steps between a measurement on the device and its reading, so that the device
            never waits. ``None``: 0 on the CPU, 4 elsewhere.

    Raises:
        ConfigError: If a value is out of range.
    """

    speedup: float | Literal["auto"] = 1.5
    full_steps: int | None = None
    predict_steps: int | None = None
    warmup_steps: int | float = 0.05
    cooldown_steps: int | float = 0.05
    total_steps: int | None = None
    enabled: bool = True
    shadow: bool = False
    updates: Mapping[str, Any] = field(default_factory=lambda: {"hidden": "spectral"})
    predictors: Mapping[str, Any] = field(default_factory=lambda: {"hidden": "fitted"})
    kinds: Mapping[str, str] = field(default_factory=dict)
    max_overhead: float = 0.1
    history_dtype: str = "float32"
    lag: int | None = None

    def __post_init__(self) -> None:
        if self.speedup != "auto":
            _check_number("speedup", self.speedup, 1.0, 'Or write speedup="auto".')
        _check_number("max_overhead", self.max_overhead, 0.0)
        for name, least in {
            "full_steps": 1,
            "predict_steps": 1,
            "total_steps": 1,
            "lag": 0,
        }.items():
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), least)
        self._check_pattern()
        for name in ("warmup_steps", "cooldown_steps"):
            _check_length(name, getattr(self, name))
        for name in ("enabled", "shadow"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))
        _check_mapping("updates", self.updates, keys=KINDS)
        _check_mapping("predictors", self.predictors, keys=KINDS)
        _check_mapping("kinds", self.kinds, values=KINDS)
        for pattern in self.kinds:
            if not isinstance(pattern, str):
                raise ConfigError("kinds", "glob patterns over parameter names", pattern)
        if self.history_dtype not in HISTORY_DTYPES:
            expected = f"one of {', '.join(HISTORY_DTYPES)}"
            raise ConfigError("history_dtype", expected, self.history_dtype)

    @property
    def compression(self) -> float:
        """Steps per full step that the configuration asks for, at least 1."""
        if self.shadow or not self.predictors:
            return 1.0
        if self.full_steps is not None and self.predict_steps is not None:
            return 1.0 + self.predict_steps / self.full_steps
        return 1.5 if self.speedup == "auto" else float(self.speedup)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, for logs and results files."""
        return {name: _plain(getattr(self, name)) for name in type(self).__dataclass_fields__}

    def _check_pattern(self) -> None:
        given = [self.full_steps is not None, self.predict_steps is not None]
        if any(given) and not all(given):
            missing = ("full_steps", "predict_steps")[given[0]]
            other = ("predict_steps", "full_steps")[given[0]]
            raise ConfigError(missing, f"an integer beside {other}", None, "Give both or neither.")
        if all(given) and self.speedup != HybridConfig.speedup:
            expected = "no value beside full_steps and predict_steps, which say the same"
            raise ConfigError("speedup", expected, self.speedup, "Leave one of them out.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **asdict(value)}
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_number(name: str, value: Any, least: float, remedy: str = "") -> None:
    if not (_is_number(value) and value >= least):
        raise ConfigError(name, f"a finite number, at least {least:g}", value, remedy)


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(name, f"an integer, at least {least}", value)


def _check_length(name: str, value: Any) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    share = isinstance(value, float) and 0.0 <= value < 1.0
    if not (whole or share):
        expected = "a number of steps (an integer, at least 0) or a share of the run in [0, 1)"
        raise ConfigError(name, expected, value)


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
