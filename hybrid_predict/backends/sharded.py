"""Kernels on this rank's parts of sharded tensors, with the results of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.backends.torch import TorchBackend


class ShardedBackend(TorchBackend):
    """What runs element by element stays local; norms, products and spectra are those of the whole.

    Every rank has to call the same kernels in the same order.

    Args:
        tensors: The parameters that every list of arrays here goes with, one by one; of those that
            are sharded the arrays are this rank's parts.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._roots = distributed.roots(tensors) or [1.0] * len(tensors)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Frobenius norm of each whole tensor, shape (K,), at least 32-bit; one all-reduce."""
        self._check(arrays)
        norms = super().norms(arrays)
        parts = torch._foreach_mul(list(norms), self._roots)
        return distributed.combine(torch.stack(parts), norms[:0])[0]

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Inner product of each pair of whole tensors, shape (K,); one all-reduce."""
        self._check(left)
        dots = super().dots(left, right)
        parts = torch._foreach_mul(list(dots), [root * root for root in self._roots])
        return distributed.combine(dots[:0], torch.stack(parts))[1]

    def flatten_spectrum(
        self, target: Sequence[Tensor], source: Sequence[Tensor], iterations: int
    ) -> list[Tensor]:
        """This rank's part of every flattened whole, gathered one by one to bound the memory."""
        self._check(source)
        for k, (x, tensor) in enumerate(zip(source, self._tensors, strict=True)):
            complete = distributed.whole(x, tensor).contiguous()
            flat = super().flatten_spectrum([torch.empty_like(complete)], [complete], iterations)
            target[k].copy_(distributed.own(flat[0], tensor))
        return list(target)

    def _check(self, arrays: Sequence[Tensor]) -> None:
        assert [x.shape for x in arrays] == [distributed.local(t).shape for t in self._tensors]
