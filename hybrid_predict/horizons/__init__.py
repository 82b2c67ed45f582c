"""Horizon rules, one final class per file; :data:`HORIZONS` is the one place that lists them."""

from typing import Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.horizons.alignment import AlignmentHorizon
from hybrid_predict.horizons.base import AbstractHorizon
from hybrid_predict.horizons.fixed import FixedHorizon

HORIZONS: dict[str, type[AbstractHorizon]] = {
    "alignment": AlignmentHorizon,
    "fixed": FixedHorizon,
}
"""Every registered horizon rule by name."""


def make_horizon(choice: Any) -> AbstractHorizon:
    """A horizon rule from its registered name, or the object itself.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(choice, AbstractHorizon):
        return choice
    if isinstance(choice, str) and choice in HORIZONS:
        return HORIZONS[choice]()
    names = ", ".join(sorted(HORIZONS))
    raise ConfigError("horizon", f"one of {names}, or an AbstractHorizon", choice)


__all__ = ["HORIZONS", "AbstractHorizon", "AlignmentHorizon", "FixedHorizon", "make_horizon"]
