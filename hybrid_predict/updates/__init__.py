"""The corrected updates, one class per file; their classes can be imported without torch."""

from typing import Any

from hybrid_predict.errors import registered
from hybrid_predict.updates.base import AbstractUpdate, UpdateState
from hybrid_predict.updates.spectral import SpectralUpdate

UPDATES: dict[str, type[AbstractUpdate]] = {"spectral": SpectralUpdate}
"""Every registered update by name."""


def make_update(choice: Any) -> AbstractUpdate:
    """Return an update by its registered name; an object is returned as is, else ConfigError."""
    return registered("updates", choice, UPDATES, AbstractUpdate)  # type: ignore[type-abstract]


__all__ = ["UPDATES", "AbstractUpdate", "SpectralUpdate", "UpdateState", "make_update"]
