"""Checks of a backend: every kernel has to agree with the reference on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from hybrid_predict.errors import ConfigError, ContractError
from hybrid_predict.tensors import AbstractBackend, ArrayBackend, TorchBackend
from hybrid_predict.testing.contract import expect

NDFloat = NDArray[Any]
Shapes = Sequence[tuple[int, ...]]

KERNELS: dict[str, Callable[[Any, Any, Any, list[float]], Any]] = {
    "zeros": lambda b, x, y, f: b.zeros(x),
    "constants": lambda b, x, y, f: b.constants(f, x),
    "copy": lambda b, x, y, f: b.copy(x, y),
    "add_scaled": lambda b, x, y, f: b.add_scaled(x, y, f),
    "average": lambda b, x, y, f: b.average(b.average(b.zeros(x), x, 0.75), y, 0.75),
    "norms": lambda b, x, y, f: b.norms(x),
    "distances": lambda b, x, y, f: b.distances(x, y, f),
    "dots": lambda b, x, y, f: b.dots(x, y),
    "angles": lambda b, x, y, f: [*b.angles(x, y)[0], *b.angles(x, y)[1]],
    "zero_rows": lambda b, x, y, f: b.zero_rows(x),
    "flatten_spectrum": lambda b, x, y, f: _flattened(b, x, y, None),
    "flatten_spectrum, levelled": lambda b, x, y, f: _flattened(b, x, y, b.zero_rows(x)),
    "flatten_spectrum, in parts": lambda b, x, y, f: _flattened(b, x, y, None, 2),
    "flatten_spectrum, by rows": lambda b, x, y, f: _flattened(b, x, y, None, 1),
    "flatten_spectrum, whitened": lambda b, x, y, f: _flattened(
        b, x, y, None, None, _covariances(b, x, y)
    ),
    "covariances": lambda b, x, y, f: [*_covariances(b, x, y)[0], *_covariances(b, x, y)[1]],
    "inverse_roots": lambda b, x, y, f: [*_roots(b, x, y)[0], *_roots(b, x, y)[1]],
    "counters": lambda b, x, y, f: [count + 1 for count in b.counters(x)],
    "zeros, float32": lambda b, x, y, f: b.copy(b.zeros(x, "float32"), y),
    "zeros, bfloat16": lambda b, x, y, f: b.average(b.zeros(x, "bfloat16"), y, 0.75),
}
"""All kernels by name, as functions of a backend, two lists of arrays, and factors."""

RESOLUTION = {"bfloat16": 2.0**-7, "float32": 2e-6, "float64": 2e-6}
"""Relative accuracy per dtype; 64-bit inputs are reduced in 32 bits where that is documented."""

SHAPES: tuple[Shapes, ...] = ((), ((),), ((4, 3), (5,), (3, 2, 2, 2), ()), ((1, 6), (6, 1)))


@final
@dataclass(frozen=True)
class BackendUnderTest:
    """A backend, with its conversions from and to NumPy.

    Args:
        backend: The backend.
        load: Function that converts a NumPy array to the backend, given the name of a dtype.
        dump: The inverse of ``load``.
        dtypes: Names of the dtypes to check, out of `RESOLUTION`.

    Raises:
        ConfigError: If an argument is of another kind.
    """

    backend: AbstractBackend[Any]
    load: Callable[[NDFloat, str], Any]
    dump: Callable[[Any], NDFloat]
    dtypes: tuple[str, ...] = ("float32",)

    def __post_init__(self) -> None:
        expect("backend", self.backend, AbstractBackend)
        for name in ("load", "dump"):
            if not callable(getattr(self, name)):
                raise ConfigError(name, "a function", getattr(self, name))
        known = isinstance(self.dtypes, (tuple, list)) and set(self.dtypes) <= RESOLUTION.keys()
        if not self.dtypes or not known:
            remedy = "Give a tuple of them."
            raise ConfigError("dtypes", f"names out of {list(RESOLUTION)}", self.dtypes, remedy)


TORCH = BackendUnderTest(
    TorchBackend(),
    lambda array, dtype: torch.tensor(array).to(getattr(torch, dtype)),
    lambda tensor: tensor.double().numpy(),
    ("float32", "float64", "bfloat16"),
)
TORCH_NARROW = replace(TORCH, backend=TorchBackend("bfloat16"))
NUMPY = BackendUnderTest(
    ArrayBackend(),
    lambda array, dtype: array.astype(dtype),
    np.asarray,
    ("float32", "float64"),
)
NUMPY_NARROW = replace(NUMPY, backend=ArrayBackend("bfloat16"))


def _flattened(
    backend: AbstractBackend[Any],
    x: Any,
    y: Any,
    rows: Any,
    block: int | None = None,
    roots: Any = None,
) -> list[Any]:
    """Flatten twice; return the results, and the second moments of rows if there are any."""
    decays, found = 0.7 + 0.2 * backend.angles(x, y)[1], []
    for source in (y, x):
        flat, rows = backend.flatten_spectrum(source, y, decays, 3, rows, block, roots)
        found += flat
    return found if rows is None else [*found, *rows]


def _covariances(backend: AbstractBackend[Any], x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    """Of two values, where the longest sides are left out, and the second of two is not due."""
    left, right = backend.diagonals(x, 6, 1.0)
    for value, least in ((x, 0), (y, 1)):
        due = [count + (k % 2 == 0) >= least for k, count in enumerate(backend.counters(x))]
        left, right = backend.covariances(left, right, value, 0.75, due)
    return left, right


def _roots(backend: AbstractBackend[Any], x: Any, y: Any) -> tuple[list[Any], list[Any]]:
    sides, before = _covariances(backend, x, y), backend.diagonals(x, 6, 2.0)
    due = [count + (k != 1) > 0 for k, count in enumerate(backend.counters(x))]
    left, right = (backend.inverse_roots(*pair, due) for pair in zip(sides, before, strict=True))
    return left, right


def check_backend(case: BackendUnderTest) -> None:
    """Check that every kernel of a backend agrees with the reference on NumPy arrays.

    Args:
        case: The backend and its conversions.

    Raises:
        ContractError: If a kernel disagrees.
        ConfigError: If ``case`` is no :class:`BackendUnderTest`.

    Example:
        >>> from hybrid_predict.testing.backends import TORCH
        >>> check_backend(TORCH)
    """
    expect("case", case, BackendUnderTest)
    for kernel in KERNELS:
        for dtype in case.dtypes:
            for shapes in SHAPES:
                check_kernel(case, kernel, dtype, shapes, seed=0)


def check_kernel(
    case: BackendUnderTest, kernel: str, dtype: str, shapes: Shapes, seed: int
) -> None:
    """Check one kernel on random arrays.

    Args:
        case: The backend and its conversions.
        kernel: Name of the kernel in `KERNELS`.
        dtype: One of the dtypes of ``case``.
        shapes: Shapes of the arrays.
        seed: Seed of the random values.

    Raises:
        ContractError: If the kernel disagrees with the reference.
    """
    generator = np.random.default_rng(seed)
    flat = kernel.startswith(("flatten_spectrum", "inverse_roots"))
    sides = [[generator.normal(size=shape) for shape in shapes] for _ in range(2)]
    if flat:
        # A multiple of the identity, because near rank deficiency rounding errors are unbounded.
        sides = [[x + 3 * np.eye(*x.shape) if x.ndim == 2 else x for x in s] for s in sides]
    left, right = ([case.load(x, dtype) for x in side] for side in sides)
    factors = [float(f) for f in generator.normal(size=len(shapes))]
    # The reference gets the rounded inputs, so that only arithmetic is compared.
    exact = [[case.dump(x).astype(np.float64) for x in side] for side in (left, right)]
    found = KERNELS[kernel](case.backend, left, right, factors)
    reference = ArrayBackend(case.backend.history)
    wanted = KERNELS[kernel](reference, exact[0], exact[1], factors)
    name = type(case.backend).__name__
    if len(found) != len(wanted):
        raise ContractError(name, f"{kernel} to give {len(wanted)} arrays", len(found))
    size = max([1.0, *(abs(e).max() for side in exact for e in side if e.size)])
    for x, y in zip(found, wanted, strict=True):
        got, want = case.dump(x), np.asarray(y)
        if got.shape != want.shape:
            raise ContractError(name, f"{kernel} to keep the shape {want.shape}", got.shape)
        stored = RESOLUTION["bfloat16" if "bfloat16" in kernel else case.backend.history]
        if kernel == "zeros, float32":
            stored = RESOLUTION["float32"]
        bound = max(RESOLUTION[dtype], stored)
        relative, absolute = bound, 20 * size**2 * bound
        if flat:
            largest = abs(want).max(initial=0.0)
            relative, absolute = 0.0, max(2e-3, stored) * (1e-9 + largest)
        if not np.allclose(got, want, rtol=relative, atol=absolute):
            worst = float(np.abs(got - want).max())
            raise ContractError(
                name, f"{kernel} in {dtype} to agree with the reference", f"{worst:.3g} apart"
            )
