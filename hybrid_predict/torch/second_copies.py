"""States of optimizers to which weights are moved back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hybrid_predict.torch.optimizer_copy import OptimizerCopy, without_trace
from hybrid_predict.torch.scratch import GRADIENT, WEIGHTS, Scratch

_PATIENCE = 128
"""Number of updates in which an optimizer returns to a state that looks like a second copy."""

_SECOND_COPIES = ("slow", "lookahead", "master", "shadow")
"""Words in the names of states that may hold a second copy of the weights."""


def second_copy(optimizer: Optimizer, group: Mapping[str, Any]) -> str:
    """Return the name of the state to which an optimizer moves weights back, or "".

    A state that looks like a copy of the weights may also be an average for validation, or the
    weights before the last update. It is a second copy if a scratch parameter follows where its
    state is moved. If that cannot be tried, name and values decide.

    Args:
        optimizer: Any torch optimizer, after an update; it and its state are not changed.
        group: One of its parameter groups.
    """
    looks = {(n, p.dtype) for p in group["params"] for n in _like(optimizer.state.get(p, {}), p)}
    for name, dtype in sorted(looks, key=str):
        try:
            with without_trace():
                follows = _follows(Scratch(OptimizerCopy(optimizer, group)), name, dtype)
        except Exception:  # the optimizer may require other parameters than a scratch one
            follows = True
        if follows:
            return name
    return ""


def _like(state: Mapping[str, Any], p: Tensor) -> Iterator[str]:
    """Names of states that look like a copy of a parameter."""
    weights = p.detach()
    for name, value in state.items():
        named = any(word in str(name).lower() for word in _SECOND_COPIES)
        if named and isinstance(value, Tensor) and value.shape == weights.shape:
            off = (value.to(weights) - weights).norm()
            if bool(weights.any()) and bool(off < 0.5 * weights.norm()):
                yield str(name)


def _follows(scratch: Scratch, name: str, dtype: torch.dtype) -> bool:
    """Whether weights come to where a state is moved after the first update."""
    weights, gradient = (torch.tensor(x, dtype=dtype) for x in (WEIGHTS, GRADIENT))
    without = {option: 0.0 for option in scratch.options if "weight_decay" in option}
    paths: list[list[Tensor]] = []
    for nudge in (0.0, 0.1):
        copied, p = scratch.copy(weights, {**without, "lr": 1e-6})
        paths.append([])
        for k in range(_PATIENCE):
            scratch.update(copied, p, gradient * (-1.0) ** k)
            if k == 0:
                copied.state[p][name].add_(nudge)
            paths[-1].append(p.detach().to(torch.float64, copy=True))
    return any(float((b - a).mean()) > 0.02 for a, b in zip(*paths, strict=True))
