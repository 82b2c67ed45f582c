"""Checks and copies saved states."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from hybrid_predict.errors import CheckpointError
from hybrid_predict.interrupts import raise_interrupt
from hybrid_predict.rules.limits import Baseline, Limits
from hybrid_predict.rules.pace import MOST, Pace
from hybrid_predict.rules.skill import Skill

T = TypeVar("T")

STATE_VERSION = 20

_ENTRIES = {
    "names": list,
    "kinds": dict,
    "undecided": list,
    "ranks": int,
    "total": int,
    "plain": bool,
    "ledger": dict,
    "tensors": dict,
    "limits": list,
    "evidence": list,
}


def check_state(state: Any) -> None:
    """Check that a value is the saved state of an engine of this version.

    Raises:
        CheckpointError: If it is not.
    """
    check_entries(state, {"version": int})
    if state["version"] != STATE_VERSION:
        raise CheckpointError(
            f"state: expected version {STATE_VERSION}, got {state['version']!r}. "
            "Resume with the version of hybrid_predict that wrote it."
        )
    check_entries(state, _ENTRIES)
    if not all(isinstance(name, str) for name in state["names"]):
        raise damaged("names of parameters", state["names"])


def check_entries(state: Any, entries: Mapping[str, type]) -> None:
    """Check that a saved state is a dict with these entries.

    Raises:
        CheckpointError: If an entry is missing or has another type.
    """
    if not isinstance(state, dict):
        raise damaged("a state that the plug-in has saved", type(state).__name__)
    for name, kind in entries.items():
        if not isinstance(state.get(name), kind):
            got = type(state[name]).__name__ if name in state else "no such entry"
            raise damaged(f"{name} to be a {kind.__name__}", got)


def damaged(expected: str, got: object) -> CheckpointError:
    """Return the error for a saved state in which something is not as expected."""
    remedy = "Resume from another checkpoint."
    return CheckpointError(f"state: expected {expected}, got {reprlib.repr(got)}. {remedy}")


@contextmanager
def reading(what: str = "state") -> Iterator[None]:
    """Convert any error that a damaged state raises in the block to a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise_interrupt(error)
        raise CheckpointError(
            f"{what}: expected a complete, unaltered state, but reading it failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


@contextmanager
def all_or_nothing(restore: Callable[[], None]) -> Iterator[None]:
    """Load a state completely or not at all.

    Raises:
        CheckpointError: If the block raises any exception.
    """
    try:
        with reading():
            yield
    except BaseException:
        restore()
        raise


def check_count(name: str, value: Any, least: int = 0) -> int:
    """Return a saved count after checking it.

    Raises:
        CheckpointError: If the value is not an integer, or below ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise damaged(f"{name} to be an integer, at least {least}", value)
    return value


def check_range(name: str, value: Any, most: float) -> float:
    """Return a saved number after checking that it is from 0 to ``most``, as others are."""
    if not 0.0 <= (number := float(value)) <= most:
        raise damaged(f"{name} in [0, {most:g}]", value)
    return number


def check_numbers(name: str, values: Any) -> list[float]:
    """Return saved numbers after checking them.

    Raises:
        CheckpointError: If one is not a finite number.
    """
    numbers = list(map(float, values))
    if not all(map(math.isfinite, numbers)):
        raise damaged(f"{name} to be finite numbers", values)
    return numbers


def finite_tuple(form: type[T], numbers: Any, least: float = -math.inf) -> T:
    """Return saved numbers as a named tuple after checking them.

    Raises:
        CheckpointError: If there are too few or too many, or one is not finite, or below ``least``.
    """
    fields: Any = form
    plain = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in numbers)
    known = plain and len(numbers) == len(fields._fields)
    if not known or min(check_numbers(form.__name__, numbers)) < least:
        raise damaged(f"{len(fields._fields)} numbers of {form.__name__}", numbers)
    return form(*numbers)


def checked_skill(numbers: Sequence[Any]) -> Skill:
    """Return a saved skill.

    Raises:
        CheckpointError: If a number is missing or cannot be.
    """
    skill = finite_tuple(Skill, numbers)
    check_count("windows", skill.windows)
    if min(skill.square, skill.chance) < 0.0:
        raise damaged("squares of skill that are not negative", numbers)
    return skill


def checked_pace(numbers: Sequence[Any]) -> Pace:
    """Return a saved pace.

    Raises:
        CheckpointError: If a number is missing or cannot be.
    """
    pace = finite_tuple(Pace, numbers)
    check_count("windows", pace.windows)
    check_range("advance", pace.advance, MOST)
    check_range("advance", pace.at_peak, MOST)
    if min(pace.predicted, pace.verifying, pace.rate, pace.peak) < 0.0:
        raise damaged("numbers of a pace that are not negative", numbers)
    return pace


def checked_groups(groups: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the saved groups; they are None where another rank than the first one saved them."""
    whole = [group for group in groups if group is not None]
    if len(whole) < len(groups):
        raise CheckpointError(
            "state: expected the state_dict() of rank 0, got that of another rank. With "
            "sharded parameters, save the state of rank 0 and load it on every rank."
        )
    return whole


def checked_limits(loss: Any, norms: Any, start: Any, mean: Any, *counts: Any) -> Limits:
    """Return saved limits.

    Raises:
        CheckpointError: If a number is missing or cannot be.
    """
    baselines = [finite_tuple(Baseline, numbers) for numbers in (loss, *norms)]
    for name, count in zip(Limits._fields[4:], counts, strict=True):
        check_count(name, count)
    for baseline in baselines:
        check_count("readings", baseline.count)
    if min(b.square for b in baselines) < 0.0 or any(map(math.isinf, (start, mean))):
        raise damaged("finite baselines", [start, mean, *baselines])
    return Limits(baselines[0], tuple(baselines[1:]), float(start), float(mean), *counts)


def cloned(value: Any) -> Any:
    """Return a copy of nested containers in which every tensor is a detached clone."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    return [cloned(v) for v in value] if isinstance(value, (list, tuple)) else value
