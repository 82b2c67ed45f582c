"""Calls the closure of an optimizer's ``step``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def evaluated(closure: Callable[[], float] | None) -> Any:
    """The closure's value, computed with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
