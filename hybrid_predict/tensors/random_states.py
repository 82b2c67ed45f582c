"""Saves and restores the states of the random number generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from hybrid_predict.errors import all_or_nothing


def random_states() -> dict[str, Any]:
    """Return the states of the generators of Python, NumPy and torch, as primitives and tensors."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = numpy_state
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Set the generators to states from :func:`random_states`, all or, on CheckpointError, none."""
    current = random_states()
    with all_or_nothing(lambda: _set(current)):
        _set(states)


def _set(states: dict[str, Any]) -> None:
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"]:
        torch.cuda.set_rng_state_all([s.cpu() for s in states["cuda"]])
