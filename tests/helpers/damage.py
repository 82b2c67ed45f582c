"""Every way in which a saved state is damaged: each of its entries, with each of these values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

REMOVED = object()
"""Stands for an entry that is missing."""

VALUES: dict[str, Any] = {
    "removed": REMOVED, "None": None, "a string": "x", "NaN": float("nan"), "inf": float("inf"),
    "-1": -1, "0": 0, "huge": 2**70, "empty": [], "a tensor": torch.zeros(3, 5),
}  # fmt: skip


def entries(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry of nested containers; of lists the first two and the last."""
    if path:
        yield path
    if isinstance(state, dict):
        keys = list(state)
    else:
        length = len(state) if isinstance(state, (list, tuple)) else 0
        keys = sorted({0, 1, length - 1} & set(range(length)))
    for key in keys:
        yield from entries(state[key], (*path, key))


def changed(state: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a state with another entry; what does not change is shared."""
    key, *rest = path
    copied = dict(state) if isinstance(state, dict) else list(state)
    if rest:
        copied[key] = changed(state[key], tuple(rest), new)
    elif new is REMOVED:
        del copied[key]
    else:
        copied[key] = new
    return copied


def damages(state: Any) -> Iterator[tuple[str, Any]]:
    """A name and a damaged copy, for every entry and every value."""
    for path in entries(state):
        found = state
        for key in path:
            found = found[key]
        values = dict(VALUES)
        if isinstance(found, Tensor) and found.is_floating_point():
            values["filled with NaN"] = torch.full_like(found, float("nan"))
            values["filled with 1e30"] = torch.full_like(found, 1e30)
        for name, value in values.items():
            yield f"{'.'.join(map(str, path))}: {name}", changed(state, path, value)
