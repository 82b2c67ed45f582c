"""What a run has cost and what it has saved, as counts that add up."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hybrid_predict.errors import ConfigError

FORWARD_SHARE = 1.0 / 3.0
"""Cost of a forward-only pass in full steps."""


@dataclass
class SavingsLedger:
    """Counts of full steps, equivalent steps, forecasts and verdicts, and the seconds they took.

    Args:
        full_steps: Forward + backward + update, done.
        equivalent_steps: What the clock counts.
        forecasts: Forecasts applied or, in shadow mode, scored.
        accepted: Verdicts read so far, by outcome; verdicts lag behind forecasts.
        shrunk: See ``accepted``.
        rejected: See ``accepted``; counts forecasts that were refused before being applied too.
        forward_passes: Forward-only passes spent on verification.
        full_seconds: Host seconds between forecasting and verification, that is in full steps.
        forecast_seconds: Host seconds spent in the plug-in.
        flops_per_step: Floating point operations of one plain full step, None if not counted.
        flops_per_forecast: Those that forecasts add to a full step they learn from, None if not
            counted.
        learned: Full steps that forecasts have learned from.
        events: What happened that a user should know: ``reason``, the ``step`` at which it first
            happened, and the ``count``.
    """

    full_steps: int = 0
    equivalent_steps: int = 0
    forecasts: int = 0
    accepted: int = 0
    shrunk: int = 0
    rejected: int = 0
    forward_passes: int = 0
    full_seconds: float = 0.0
    forecast_seconds: float = 0.0
    flops_per_step: int | None = None
    flops_per_forecast: int | None = None
    learned: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Full-step cost: a full step counts 1, a forward-only pass 1/3."""
        return self.full_steps + FORWARD_SHARE * self.forward_passes

    @property
    def saved_steps_fraction(self) -> float:
        """Share of the equivalent steps that no full-step cost was paid for."""
        return 1.0 - self.cost / self.equivalent_steps if self.equivalent_steps else 0.0

    @property
    def acceptance(self) -> float:
        """Share of the verdicts that did not reject."""
        kept = self.accepted + self.shrunk
        return kept / (kept + self.rejected) if kept + self.rejected else 0.0

    @property
    def overhead_fraction(self) -> float:
        """Seconds in the plug-in per second in full steps."""
        return self.forecast_seconds / self.full_seconds if self.full_seconds else 0.0

    @property
    def estimated_seconds_saved(self) -> float:
        """Steps not taken at the mean price of those taken, less the seconds in the plug-in."""
        if not self.full_steps:
            return 0.0
        mean = self.full_seconds / self.full_steps
        return (self.equivalent_steps - self.full_steps) * mean - self.forecast_seconds

    @property
    def estimated_flops_saved(self) -> float | None:
        """Operations of the steps not taken, less those of forecasts; None if not counted."""
        if self.flops_per_step is None:
            return None
        spent = self.learned * (self.flops_per_forecast or 0)
        return (self.equivalent_steps - self.cost) * self.flops_per_step - spent

    def count(self, verdict: str) -> None:
        """Count one verdict: ``accepted``, ``shrunk`` or ``rejected``."""
        setattr(self, verdict, getattr(self, verdict) + 1)

    def record(self, step: int, reason: str) -> bool:
        """Note an event; True if this reason is new, so that it should be logged."""
        for event in self.events:
            if event["reason"] == reason:
                event["count"] += 1
                return False
        self.events.append({"step": step, "reason": reason, "count": 1})
        return True

    def load(self, data: dict[str, Any]) -> None:
        """Continue from a :meth:`summary`."""
        loaded = self.from_dict(data)
        for f in fields(self):
            setattr(self, f.name, getattr(loaded, f.name))

    def summary(self) -> dict[str, Any]:
        """Counts and derived figures as plain data."""
        derived = (
            "cost",
            "saved_steps_fraction",
            "acceptance",
            "overhead_fraction",
            "estimated_seconds_saved",
            "estimated_flops_saved",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def to_json(self) -> str:
        """The ledger as a JSON document."""
        return json.dumps(self.summary(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> SavingsLedger:
        """Read a ledger back; derived figures are computed anew.

        Raises:
            ConfigError: If the text is not a ledger.
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError
            return cls.from_dict(data)
        except ConfigError:
            raise
        except (ValueError, KeyError) as error:
            raise ConfigError(
                "text",
                "a ledger written by to_json()",
                text[:60],
                f"Its reading failed with: {error!r}.",
            ) from error

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SavingsLedger:
        """Read a :meth:`summary` back; derived figures are computed anew.

        Raises:
            ConfigError: If a count is no number.
            KeyError: If one is missing.
        """
        known = {f.name: data[f.name] for f in fields(cls)}
        for name, value in known.items():
            numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
            optional = name.startswith("flops_per") and value is None
            if name != "events" and not optional and not (numeric and 0 <= value < math.inf):
                raise ConfigError(name, "a finite number, at least 0", value)
        whole = isinstance(known["events"], list) and all(map(_is_event, known["events"]))
        if not whole:
            raise ConfigError("events", "a list of reason, step and count", known["events"])
        return cls(**known)


def _is_event(event: object) -> bool:
    fields = {"reason": str, "step": int, "count": int}
    return isinstance(event, dict) and all(isinstance(event.get(n), t) for n, t in fields.items())
