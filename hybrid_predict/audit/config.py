"""What an audit compares and how it judges."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

from hybrid_predict.config import Described, HybridConfig, Speedup, check_names, is_number
from hybrid_predict.errors import ConfigError
from hybrid_predict.integrations.configuration import checked
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FULL, HYBRID, SHORT
from hybrid_predict.updates import make_update

SHORTENED = (SHORT, CORRECTED)
"""The arms whose schedule is shortened."""

AUTO: Literal["auto"] = "auto"
"""Speedup of a hybrid arm that decides itself; short arms take as many full steps as it did."""

_SET_BY_THE_AUDIT = {
    "speedup",
    "full_steps",
    "predict_steps",
    "total_steps",
    "enabled",
    "shadow",
}


def direction_name(direction: Any) -> str:
    """Return the name of a corrected update, or its class with the arguments that were given."""
    if isinstance(direction, str):
        return direction
    given = {}
    if is_dataclass(direction):
        every = {f.name: (getattr(direction, f.name), f.default) for f in fields(direction)}
        given = {name: value for name, (value, default) in every.items() if value != default}
    arguments = ", ".join(f"{argument}={value!r}" for argument, value in given.items())
    return f"{type(direction).__name__}({arguments})"


def speedup_text(speedup: Speedup) -> str:
    """Format a speedup."""
    return speedup if isinstance(speedup, str) else f"{speedup:g}"


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
        seeds: Number of paired seeds, from 1 to 10,000; they are 0, 1, 2 and so on. Fewer than 5
            give a hint and no verdict.
        speedup: Steps per full step of the hybrid arm, above 1. With ``"auto"`` the hybrid arm
            decides, and the short arms of a seed take as many full steps as it took.
        speedups: Candidates of :func:`hybrid_predict.audit.search`: numbers above 1, ascending,
            after which ``"auto"`` may come.
        directions: Corrected updates of hidden matrices among which a search chooses: names such as
            "spectral", or objects such as ``SpectralUpdate(share=0.5)``. Each takes the place of
            the one in ``hybrid``. Empty for that one alone.
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
    speedup: Speedup = 1.5
    speedups: tuple[Speedup, ...] = (1.25, 1.5, 2.0, 3.0)
    directions: tuple[Any, ...] = ()
    margin: float | None = None
    retain: float = 0.8
    alpha: float = 0.05
    hybrid: Described = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    controls: Mapping[str, Described] = field(default_factory=dict)
    experiment: str = "hybrid-predict audit"
    mlflow: bool = True

    def __post_init__(self) -> None:
        for name, (expected, valid) in _CHECKS.items():
            if not valid(value := getattr(self, name)):
                raise ConfigError(name, expected, value)
        for name in ("speedups", "directions", "scaled"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_controls(self.controls)
        self.hybrid_config()
        self._check_directions()

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, in the order in which each seed trains them."""
        arms = (FULL, HYBRID, *SHORTENED) if self.speedup == AUTO else ARMS
        return (*arms, *self.controls)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The candidates of a search that are numbers."""
        return tuple(speedup for speedup in self.speedups if not isinstance(speedup, str))

    @property
    def first_tested(self) -> Speedup:
        """The candidate that a search tests first."""
        return self.numbers[(len(self.numbers) - 1) // 2] if self.numbers else AUTO

    def by_direction(self) -> dict[str, AuditConfig]:
        """Return the configuration with each of ``directions``, by name; or this one alone."""
        each = {direction_name(d): self._with_direction(d) for d in self.directions}
        return each or {"": self}

    def _check_directions(self) -> None:
        """Check that directions exist and differ, and that there is a length to compare them at."""
        names = list(map(direction_name, self.directions))
        configs = [self._with_direction(each).hybrid_config() for each in self.directions]
        updates = [make_update(config.updates["hidden"]) for config in configs]
        if len(set(names)) < len(names) or any(u in updates[:k] for k, u in enumerate(updates)):
            raise ConfigError("directions", "updates that differ", names)
        if len(names) > 1 and not self.numbers:
            remedy = "Directions are compared at the same number of full steps."
            raise ConfigError("speedups", "a number among them", self.speedups, remedy)

    def _with_direction(self, direction: Any) -> AuditConfig:
        updates = {**HybridConfig(**self.hybrid).updates, "hidden": direction}
        hybrid = {**self.hybrid, "updates": updates}
        return replace(self, directions=(), hybrid=hybrid)

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
        allowed = HybridConfig.__dataclass_fields__.keys() - _SET_BY_THE_AUDIT
        check_names("hybrid", self.hybrid, allowed)
        config = checked(HybridConfig(speedup=self.speedup, **self.hybrid))
        if not (chosen := config.chosen_predictors):
            remedy = "Without predicted steps the hybrid arm saves no full step."
            raise ConfigError("hybrid", "a predictor of some kind", chosen, remedy)
        return config

    @property
    def update(self) -> str:
        """The corrected update of hidden matrices, as text that tells it from others."""
        described = self.hybrid_config().to_dict()["updates"].get("hidden", "")
        return described if isinstance(described, str) else json.dumps(described, sort_keys=True)

    def training(self) -> dict[str, Any]:
        """Return the options that all finished runs depend on, as plain data.

        Without the corrected update of hidden matrices, on which only some of them depend.
        """
        values = self.to_dict()
        hybrid = dict(values["hybrid"])
        updates = hybrid.pop("updates", {})
        if further := {kind: update for kind, update in updates.items() if kind != "hidden"}:
            hybrid["updates"] = further
        return {**{name: values[name] for name in ("metric", "mode", "scaled")}, "hybrid": hybrid}

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data."""
        chosen = self.hybrid_config().to_dict()
        return {
            **{name: getattr(self, name) for name in type(self).__dataclass_fields__},
            "hybrid": {name: chosen[name] for name in self.hybrid},
            "scaled": list(self.scaled),
            "speedups": list(self.speedups),
            "directions": list(map(direction_name, self.directions)),
            "controls": {name: dict(changes) for name, changes in self.controls.items()},
        }


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


def _name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _ascending(value: Any) -> bool:
    """Whether it is a list of speedups, each larger than the one before; the last may be auto."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    numbers = list(value[:-1] if value[-1] == AUTO else value)
    return all(is_number(v) and v > 1 for v in numbers) and numbers == sorted(set(numbers))


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "metric": ("a name", _name),
    "experiment": ("a name", _name),
    "mode": ("'min' or 'max'", lambda v: v in ("min", "max")),
    "seeds": ("an integer from 1 to 10,000", lambda v: type(v) is int and 1 <= v <= 10_000),
    "mlflow": ("True or False", lambda v: isinstance(v, bool)),
    "speedup": (
        "a finite number above 1, or 'auto'", lambda v: v == AUTO or (is_number(v) and v > 1),
    ),
    "speedups": ("numbers above 1, ascending, and at the end perhaps 'auto'", _ascending),
    "directions": ("a list of updates", lambda v: isinstance(v, (list, tuple))),
    "margin": ("a finite number above 0, or None", lambda v: v is None or (is_number(v) and v > 0)),
    "retain": ("a number above 0 and at most 1", lambda v: is_number(v) and 0 < v <= 1),
    "alpha": ("a number above 0 and below 0.5", lambda v: is_number(v) and 0 < v < 0.5),
    "scaled": (
        "a list of dotted keys", lambda v: isinstance(v, (list, tuple)) and all(map(_name, v)),
    ),
}  # fmt: skip
"""What each option has to be, and a function that tells whether it is."""
