"""Saved numbers as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def loaded(cls: type[T], state: Mapping[str, Any]) -> T:
    """Return a dataclass with saved values, of which none may be missing.

    Raises:
        KeyError: If one is missing.
    """
    return cls(**{field.name: state[field.name] for field in fields(cls)})  # type: ignore[arg-type]
