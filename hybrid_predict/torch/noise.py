"""How long an optimizer's updates follow noise: a copy of it updates on random gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.interrupts import failures_suppressed
from hybrid_predict.rules.pace import carried
from hybrid_predict.torch.optimizer_copy import LARGEST, OptimizerCopy, without_trace

_LENGTH, _WINDOWS, _SETTLED = 20, 16, 6
"""Updates in a window, number of windows, and windows before the first that is compared."""

_CLEAR, _BEYOND = 0.05, 0.1
"""Least cosine with the next window, and least excess of what goes on, that count as measured."""

_LARGEST = 0.999
"""Largest decay that is returned."""


def noise_decay(optimizer: Optimizer, group: Mapping[str, Any], known: float) -> float:
    """Return the decay of the average that an optimizer makes of gradients.

    It is not always the decay in [0, 1) ``known`` from the options of the group: Lion's average
    decays by the second beta. On gradients that are nothing but noise, the movement of a window
    goes on in the second window after it by the share that `rules.pace.carried` computes from the
    decay. If clearly more goes on, the decay that explains it is returned. Nothing is changed.
    """
    with failures_suppressed(), without_trace():  # it may require other parameters
        windows = _windows(OptimizerCopy(optimizer, group))
        pairs = range(_SETTLED, _WINDOWS - 1)
        near, far = (
            sum(_cosine(windows[k - 1], windows[k + lag]) for k in pairs) / len(pairs)
            for lag in (0, 1)
        )
        if near > _CLEAR and far / near > carried(known, _LENGTH, _LENGTH) + _BEYOND:
            return _explaining(far / near)
    return known


def _windows(copies: OptimizerCopy) -> list[Tensor]:
    """Return the movement in each of successive windows of updates on random gradients."""
    generator, windows = torch.Generator().manual_seed(0), []
    copied, options = copies.make(p := nn.Parameter(torch.ones(LARGEST)))
    options.update({name: 0.0 for name in options if "weight_decay" in name})
    for _ in range(_WINDOWS):
        before = p.detach().clone()
        for _ in range(_LENGTH):
            copies.update(copied, p, torch.randn(LARGEST, generator=generator))
        windows.append(p.detach() - before)
    return windows


def _cosine(left: Tensor, right: Tensor) -> float:
    return float(nn.functional.cosine_similarity(left, right, dim=0))


def _explaining(share: float) -> float:
    """Return the decay by which a share of a window's movement goes on in the next one."""
    low, high = 0.0, _LARGEST
    for _ in range(30):
        middle = (low + high) / 2.0
        low, high = (middle, high) if carried(middle, _LENGTH, _LENGTH) < share else (low, middle)
    return high
