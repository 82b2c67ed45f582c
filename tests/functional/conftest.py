"""The array libraries that the functional form runs on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def tools(library: str) -> Any:
    """How a library's arrays are loaded."""
    if library == "numpy":
        yield {"load": np.asarray}
        return
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield {"load": jax.numpy.asarray}
