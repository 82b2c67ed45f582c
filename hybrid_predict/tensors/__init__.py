"""Array kernels for forecasts and corrections, and sharded tensors over several ranks."""

from hybrid_predict.tensors.arrays import ArrayBackend
from hybrid_predict.tensors.base import AbstractBackend
from hybrid_predict.tensors.sharded import ShardedBackend
from hybrid_predict.tensors.torch import TorchBackend, is_half, upcast

BACKENDS: dict[str, type[AbstractBackend]] = {"torch": TorchBackend, "arrays": ArrayBackend}
"""Every registered backend by name; tests run over all of them."""

__all__ = [
    "BACKENDS",
    "AbstractBackend",
    "ArrayBackend",
    "ShardedBackend",
    "TorchBackend",
    "is_half",
    "upcast",
]
