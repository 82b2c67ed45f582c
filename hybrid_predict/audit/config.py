"""What an audit compares and how it judges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hybrid_predict.config import Described, HybridConfig, Speedup, check_names, is_number
from hybrid_predict.errors import ConfigError
from hybrid_predict.integrations.options import checked
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import finite

AUTO: Literal["auto"] = "auto"
"""Speedup of a hybrid arm that decides itself; short arms take as many full steps as it did."""

SHORTENED = (SHORT, CORRECTED)
"""Arms with a schedule that is shortened by the speedup."""

SET_BY_THE_AUDIT = {"speedup", "full_steps", "predict_steps", "total_steps", "enabled", "shadow"}
"""Fields of HybridConfig that ``hybrid`` does not have."""


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
        compare: ``last`` compares the final weights, ``best`` the best validation of each run, as
            the user keeps it who saves the best checkpoint.
        seeds: Number of paired seeds, from 1 to 10,000; they are 0, 1, 2 and so on. Fewer than 5
            give a hint and no verdict.
        speedup: Steps per full step of the hybrid arm, above 1. With ``"auto"`` the hybrid arm
            decides, and the short arms of a seed take as many full steps as it took.
        speedups: Candidates of :func:`hybrid_predict.audit.search`: numbers above 1, ascending,
            after which ``"auto"`` may come.
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
    compare: Literal["last", "best"] = "last"
    seeds: int = 5
    speedup: Speedup = 1.5
    speedups: tuple[Speedup, ...] = (1.25, 1.5, 2.0, 3.0)
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
        for name, changes in self.controls.items():
            # It is in the names of folders, which have a hyphen after it.
            if not re.fullmatch(r"\w[\w ,.]*", str(name)) or name in ARMS:
                expected = f"a name of letters, digits and ' ,._', none of {', '.join(ARMS)}"
                raise ConfigError("controls", expected, name)
            if not isinstance(changes, Mapping) or not changes:
                raise ConfigError(f"controls.{name}", "keys and their values", changes)
        self.hybrid_config()

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms, in the order in which each seed trains them."""
        # With auto the hybrid arm's full steps tell how long the short arms are.
        order = (FULL, HYBRID, SHORT, CORRECTED) if self.speedup == AUTO else ARMS
        return (*order, *self.controls)

    def speedup_of(self, arm: str) -> Speedup | None:
        """Return the speedup; None for arms that do not depend on it."""
        return self.speedup if arm in (HYBRID, *SHORTENED) else None

    @property
    def numbers(self) -> tuple[float, ...]:
        """The candidates of a search that are numbers."""
        return tuple(speedup for speedup in self.speedups if not isinstance(speedup, str))

    @property
    def sign(self) -> float:
        """Factor that turns the metric into one of which less is better."""
        return 1.0 if self.mode == "min" else -1.0

    def hybrid_config(self) -> HybridConfig:
        """Return the configuration of the hybrid arm.

        Raises:
            ConfigError: If ``hybrid`` has a wrong name or value.
        """
        allowed = HybridConfig.__dataclass_fields__.keys() - SET_BY_THE_AUDIT
        check_names("hybrid", self.hybrid, allowed)
        config = checked(HybridConfig(speedup=self.speedup, **self.hybrid))
        if config.on_overfit == "stop":
            remedy = "Arms train to their end; compare: best compares their best validations."
            raise ConfigError("hybrid.on_overfit", "'pause' or 'ignore'", "stop", remedy)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data."""
        chosen = self.hybrid_config().to_dict()
        values = {**vars(self), "hybrid": {name: chosen[name] for name in self.hybrid}}
        return dict(finite(values))


def _is_above(least: float, value: Any) -> bool:
    return is_number(value) and value > least


def _are_ascending(value: Any) -> bool:
    """Whether it is a list of speedups, each larger than the one before; the last may be auto."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    numbers = list(value[:-1] if value[-1] == AUTO else value)
    return all(_is_above(1, v) for v in numbers) and numbers == sorted(set(numbers))


_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "metric": ("a name", lambda v: isinstance(v, str) and bool(v)),
    "mode": ("'min' or 'max'", lambda v: v in ("min", "max")),
    "compare": ("'last' or 'best'", lambda v: v in ("last", "best")),
    "seeds": ("an integer from 1 to 10,000", lambda v: type(v) is int and 1 <= v <= 10_000),
    "speedup": ("a finite number above 1, or 'auto'", lambda v: v == AUTO or _is_above(1, v)),
    "speedups": ("numbers above 1, ascending, and at the end perhaps 'auto'", _are_ascending),
    "margin": ("a finite number above 0, or None", lambda v: v is None or _is_above(0, v)),
    "retain": ("a number above 0 and at most 1", lambda v: _is_above(0, v) and v <= 1),
    "alpha": ("a number above 0 and below 0.5", lambda v: _is_above(0, v) and v < 0.5),
    "scaled": ("a list of dotted keys", lambda v: isinstance(v, (list, tuple))),
    "hybrid": ("a mapping", lambda v: isinstance(v, Mapping)),
}
"""What each option has to be, and a function that tells whether it is."""
