"""The plain kernels in other array libraries agree with those on NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_predict.tensors import ArrayBackend
from hybrid_predict.testing import BackendUnderTest, check_backend
from hybrid_predict.testing.backends import TORCH

pytest.importorskip("array_api_compat")


@pytest.mark.parametrize("history", ["float32", "bfloat16"])
def test_torch(history: str) -> None:
    dtypes = ("float32", "float64", "bfloat16")
    check_backend(BackendUnderTest(ArrayBackend(history), TORCH.load, TORCH.dump, dtypes))


@pytest.mark.slow  # every shape is compiled anew
def test_jax() -> None:
    jax = pytest.importorskip("jax")

    def dump(array: jax.Array) -> np.ndarray:
        return np.asarray(array).astype(np.float64)

    with jax.enable_x64(True):
        dtypes = ("float32", "float64", "bfloat16")
        check_backend(BackendUnderTest(ArrayBackend(), jax.numpy.asarray, dump, dtypes))
