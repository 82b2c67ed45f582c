"""The configuration of a run: one frozen dataclass that validates its fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import wraps
from inspect import signature
from typing import Any, Literal, TypeVar, final

from hybrid_predict.errors import ConfigError, did_you_mean

KINDS = ("hidden", "embedding", "head", "vector")
"""Parameter kinds: hidden matrices, embeddings, the output head, biases and norm gains."""

MOST_PREDICTED = 4
"""Largest number of predicted steps per full step with ``speedup="auto"``."""

Speedup = float | Literal["auto"]
"""Steps per full step: a number, or as many as the run decides itself."""

ON_OVERFIT = ("pause", "stop", "ignore")
"""What may happen while a run overfits."""

HISTORY_DTYPES = ("float32", "bfloat16")
"""Types in which averages of gradients and displacements can be stored."""

Described = Mapping
"""A mapping that may describe objects by ``class_path``; without types of keys and values, because
LightningCLI calls any value of type ``Any`` describes, before its class can be checked."""

T = TypeVar("T")


def check_names(
    owner: str, given: Iterable[str], known: Iterable[str], kind: str = "arguments"
) -> None:
    """Check that an ``owner``, such as a class, has all names; ``kind`` says what they are.

    Raises:
        ConfigError: If a name is unknown; the message suggests the nearest known name.
    """
    names = sorted(known)
    for name in given:
        if name not in names:
            remedy = did_you_mean(name, names) or f"It has {', '.join(names)}."
            if "config" in names and name in HybridConfig.__dataclass_fields__:
                remedy = f"Pass config=HybridConfig({name}=...)."
            raise ConfigError(owner, f"one of its {kind}", name, remedy)


def tells_unknown_names(cls: type[T]) -> type[T]:
    """Make a class raise a `ConfigError` that suggests the nearest name for an unknown argument."""
    made = cls.__init__
    known = signature(cls).parameters

    @wraps(made)
    def init(self: Any, *args: Any, **values: Any) -> None:
        check_names(cls.__name__, values, known)
        made(self, *args, **values)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@final
@tells_unknown_names
@dataclass(frozen=True, kw_only=True)
class HybridConfig:
    """The configuration: which updates are corrected, which weights are predicted, and how often.

    Args:
        speedup: Steps of the run per full step, a number of at least 1, which plans none. A run of
            N steps plans N - round(N / speedup) predicted steps; where forecasts lack skill, full
            steps are taken instead. With ``"auto"`` the run decides after every window of full
            steps how many follow each full step, up to 4, and how long they are: none where
            forecasts do not last, as on most tasks at good learning rates; at most half a step
            where few weights are in hidden matrices, or once the training loss has gone back.
        full_steps: Number of full steps before each group of predicted steps, at least 1. Set it
            together with ``predict_steps``, instead of ``speedup``.
        predict_steps: Number of predicted steps in each group, at least 1.
        warmup_steps: Smallest number of steps at the start without predicted steps: an integer, or
            a float in [0, 1) as a share of the run. If predicted steps need skill, the warm-up
            lasts until skill can be known.
        cooldown_steps: Number of steps at the end without predicted steps: an integer, or a float
            in [0, 1) as a share of the run.
        total_steps: N, the run's length in steps. The Lightning callback takes it from the Trainer.
        enabled: ``False`` turns the plug-in off: training is bit-identical to training without it,
            random state included.
        shadow: Whether to forecast and measure without changing a weight; training stays
            bit-identical.
        updates: Corrected update per parameter kind, by registered name or as an object. Kinds that
            are not listed keep the optimizer's update.
        predictors: Predictor per parameter kind, by registered name or as an object. Predicted
            steps do not move kinds that are not listed. None means ``fitted`` for every kind, and
            predicted steps as long as forecasts last; hidden matrices move by at least one
            forecast. With a number as ``speedup``, kinds that are listed move by one forecast.
        kinds: Overrides of the automatic classification: glob pattern over parameter names to kind.
            The first pattern that matches wins.
        watch_loss: Whether a high training loss undoes predicted steps, as large gradients do, and
            whether a rising loss ends them. ``False`` is for non-stationary objectives, as in
            reinforcement or adversarial learning: the loss then only has to be finite.
        on_overfit: What happens while the run overfits, as its validations show (see
            :class:`hybrid_predict.policy.overfitting.Overfitting`): ``"pause"`` trains as without
            the plug-in until validation is best again, ``"stop"`` ends the run, and ``"ignore"``
            does nothing. Without validations there is no guard.
        max_overhead: Largest number of operations that corrected updates may add, as a share of
            those of a full step, which count as at least 100 million; at least 0. On several ranks
            it is the share of the rank that has most to correct. If it is too little to correct
            every matrix in every full step, each is corrected in one of several, and moves further;
            if one in six is too much, nothing is corrected, and predicted steps that need skill are
            not taken. 1e9 means no limit.
        history_dtype: Dtype in which averages are stored: ``float32``, or ``bfloat16`` in half the
            memory, for averages with a decay of at most 0.95. Arithmetic is in 32 bits.

    Raises:
        ConfigError: If a value is invalid.
    """

    speedup: Speedup = 1.5
    full_steps: int | None = None
    predict_steps: int | None = None
    warmup_steps: int | float = 0.05
    cooldown_steps: int | float = 0.05
    total_steps: int | None = None
    enabled: bool = True
    shadow: bool = False
    updates: Described = field(default_factory=lambda: {"hidden": "spectral"})
    predictors: Described | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    watch_loss: bool = True
    on_overfit: str = "pause"
    max_overhead: float = 0.5
    history_dtype: str = "float32"

    def __post_init__(self) -> None:
        for names, holds, expected in _RULES:
            for name in names:
                if not holds(getattr(self, name)):
                    raise ConfigError(name, expected, getattr(self, name))
        _check_kinds("updates", self.updates, '{"hidden": "spectral"}', list)
        if self.predictors is not None:
            _check_kinds("predictors", self.predictors, '{"hidden": "fitted"}', list)
        _check_kinds("kinds", self.kinds, '{"*.out.*": "head"}', dict.values)
        pattern = {"full_steps": self.full_steps, "predict_steps": self.predict_steps}
        missing = [name for name, value in pattern.items() if value is None]
        if len(missing) == 1:
            remedy = "Set both or neither."
            raise ConfigError(missing[0], "an integer, because the other is set", None, remedy)
        if self.on_overfit == "stop" and not self.watch_loss:
            raise ConfigError("on_overfit", "'pause' or 'ignore' with watch_loss=False", "stop")
        if not missing and self.speedup != HybridConfig.speedup:
            raise ConfigError("speedup", "none beside full_steps and predict_steps", self.speedup)

    @property
    def paced(self) -> bool:
        """Whether the run decides itself how many predicted steps it takes."""
        return self.speedup == "auto" and self.full_steps is None

    @property
    def compression(self) -> float:
        """Largest number of steps per full step that the configuration asks for, at least 1."""
        if self.shadow or not (self.enabled and self.chosen_predictors):
            return 1.0
        if self.full_steps is not None and self.predict_steps is not None:
            return 1.0 + self.predict_steps / self.full_steps
        return 1.0 + MOST_PREDICTED if self.speedup == "auto" else float(self.speedup)

    @property
    def active_updates(self) -> Mapping[str, Any]:
        """Corrected update per parameter kind; none if the run is disabled or a shadow."""
        return self.updates if self.enabled and not self.shadow else {}

    @property
    def active_predictors(self) -> Mapping[str, Any]:
        """Predictor per parameter kind, if forecasts move weights or are scored in a shadow."""
        forecasts = self.enabled and (self.shadow or self.compression > 1)
        return self.chosen_predictors if forecasts else {}

    @property
    def chosen_predictors(self) -> Mapping[str, Any]:
        """Predictor per parameter kind, with the default in place of None."""
        if self.predictors is not None:
            return self.predictors
        return dict.fromkeys(KINDS, "fitted")

    @property
    def always_predicted(self) -> frozenset[str]:
        """Kinds that predicted steps move even while forecasts do not last, if these have skill."""
        named = ("hidden",) if self.predictors is None else self.predictors
        return frozenset(() if self.paced else named)

    def with_length(self, steps: int) -> HybridConfig:
        """Return the configuration of a run of this many steps, at least 1."""
        return replace(self, total_steps=max(1, steps))

    def with_speedup(self, speedup: Speedup) -> HybridConfig:
        """Return the configuration with a speedup, in place of any pattern of steps."""
        return replace(self, speedup=speedup, full_steps=None, predict_steps=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, for logs and results files."""
        values = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        values["predictors"] = self.chosen_predictors
        return {name: _plain(value) for name, value in values.items()}


def check_history(decay: float, history: str) -> None:
    r"""Check that a type can store an average of this decay.

    In bfloat16, an increment :math:`(1 - \gamma)(g - m)` below half the spacing is rounded away, so
    an entry stops within :math:`2^{-8} / (1 - \gamma)` of a constant value: 8 % at 0.95.
    """
    if history == "bfloat16" and decay > 0.95:
        expected = "'float32' for averages with a decay above 0.95"
        remedy = "Lower the decay, or store averages in 32 bits."
        raise ConfigError("history_dtype", expected, history, remedy)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {"class": type(value).__name__, **asdict(value)}
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def is_number(value: object) -> bool:
    """Whether a value is an int or a float that is finite, also as a float."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _is_integer(value: object, least: int = 1) -> bool:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return plain and least <= value <= sys.maxsize  # type: ignore[operator]


def _is_speedup(value: Any) -> bool:
    return value == "auto" or (is_number(value) and value >= 1.0)


def _is_share(value: Any) -> bool:
    return is_number(value) and value >= 0.0


def _is_count(value: object) -> bool:
    return value is None or _is_integer(value)


def _is_length(value: Any) -> bool:
    return _is_integer(value, 0) or (isinstance(value, float) and 0.0 <= value < 1.0)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


_RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("speedup",), _is_speedup, 'steps per full step, a finite number of at least 1, or "auto"'),
    (("max_overhead",), _is_share, "a finite number, at least 0"),
    (("full_steps", "predict_steps", "total_steps"), _is_count, "an integer, at least 1, or None"),
    (("warmup_steps", "cooldown_steps"), _is_length, "steps, at least 0, or a share in [0, 1)"),
    (("enabled", "shadow", "watch_loss"), _is_bool, "True or False"),
    (("on_overfit",), ON_OVERFIT.__contains__, f"one of {', '.join(ON_OVERFIT)}"),
    (("history_dtype",), HISTORY_DTYPES.__contains__, f"one of {', '.join(HISTORY_DTYPES)}"),
)
"""Fields, what their values have to be, and how a message says it."""


def _check_kinds(name: str, value: Any, example: str, kinds: Callable[[Any], Any]) -> None:
    """Check a mapping of which either the keys or the values are kinds."""
    if not isinstance(value, Mapping):
        raise ConfigError(name, f"a mapping such as {example}, or {{}} for none", value)
    for kind in kinds(value):
        if kind not in KINDS:
            expected = f"parameter kinds out of {', '.join(KINDS)}"
            raise ConfigError(name, expected, kind, did_you_mean(kind, KINDS))
    if not all(isinstance(key, str) for key in value):
        raise ConfigError(name, "names as keys", value)
