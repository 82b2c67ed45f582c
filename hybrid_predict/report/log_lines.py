"""What the lines of an event log hold, and whether a line that was read holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hybrid_predict.config import KINDS

SCHEMA = 2
"""Version of the lines, as the start of a run has it."""

COUNTS = ("full_steps", "steps", "corrected_steps", "predicted_steps", "undone_steps")
"""Counts in every row."""


def is_line(found: dict[str, Any]) -> bool:
    """Whether a mapping is a line of an event log, with all entries that are read of it."""
    kind = found.get("type")
    entries = _LINES.get(kind) if isinstance(kind, str) else None
    if kind == "start" and found.get("schema") != SCHEMA:
        entries = {"schema": _version}  # other versions have other entries
    return entries is not None and _holds(found, entries)


def _holds(value: object, entries: Mapping[str, Callable[[Any], bool]]) -> bool:
    return isinstance(value, dict) and all(
        name in value and check(value[name]) for name, check in entries.items()
    )


def _number(value: object) -> bool:
    """Whether a value is a number whose sums and squares are finite."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and -1e100 < value < 1e100  # type: ignore[operator]


def _number_or_none(value: object) -> bool:
    return value is None or _number(value)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15


def _version(value: object) -> bool:
    return _count(value) and value != 0


def _time(value: object) -> bool:
    return _number(value) and 0 <= value < 1e11  # type: ignore[operator]


def _text(value: object) -> bool:
    return isinstance(value, str)


def _mapping(value: object) -> bool:
    return isinstance(value, dict)


def _numbers(length: int, check: Callable[[Any], bool]) -> Callable[[object], bool]:
    def found(value: object) -> bool:
        return isinstance(value, list) and len(value) == length and all(map(check, value))

    return found


def _plan(value: Any) -> bool:
    names = ("steps", "predicted", "warmup", "cooldown")
    return _holds(value, dict.fromkeys(names, _count)) and value["steps"] > 0


def _skills(value: Any) -> bool:
    entries = dict.fromkeys(("mean", "lower", "length", "fitted", "error", "windows"), _number)
    known = isinstance(value, dict) and value.keys() <= set(KINDS)
    return known and all(_holds(each, entries) for each in value.values())


_LINES: dict[str, dict[str, Callable[[Any], bool]]] = {
    "start": {
        "time": _time, "schema": _count, "full_steps": _count, "plan": _plan,
        "config": _mapping, "environment": _mapping,
    },
    "row": {
        "time": _time, **dict.fromkeys(COUNTS, _count), "phase": _text, "loss": _number_or_none,
        "skill": _number_or_none, "predicted_length": _number, "skills": _skills,
        "seconds": _numbers(3, _number), "flops": _numbers(2, _number_or_none),
    },
    "event": {"time": _time, "full_steps": _count, "reason": _text},
    "end": {"time": _time, "status": _text},
}  # fmt: skip
