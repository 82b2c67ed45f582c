"""Kernels on this rank's parts of sharded tensors, with the results of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.backends.torch import TorchBackend, blended


class ShardedBackend(TorchBackend):
    """What runs element by element stays local; norms, products and spectra are those of the whole.

    Every rank has to call the same kernels in the same order.

    Args:
        tensors: The parameters that every list of arrays here goes with, one by one; of those that
            are sharded the arrays are this rank's parts.
        history: How histories are stored.
    """

    def __init__(self, tensors: Sequence[Tensor], history: str = "float32") -> None:
        super().__init__(history)
        self._tensors = list(tensors)
        self._roots = distributed.roots(tensors) or [1.0] * len(tensors)

    def matrices(self, like: Sequence[Tensor]) -> list[tuple[int, int]]:
        """Rows and columns of the whole tensors."""
        return super().matrices(self._tensors)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Frobenius norm of each whole tensor, shape (K,), at least 32-bit; one all-reduce.

        Several lists one after the other are measured at the price of one.
        """
        times = len(arrays) // max(1, len(self._tensors))
        self._check(arrays, times)
        norms = super().norms(arrays)
        parts = torch._foreach_mul(list(norms), self._roots * times)
        return distributed.combine(torch.stack(parts), norms[:0])[0]

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Inner product of each pair of whole tensors, shape (K,); one all-reduce."""
        self._check(left)
        dots = super().dots(left, right)
        parts = torch._foreach_mul(list(dots), [root * root for root in self._roots])
        return distributed.combine(dots[:0], torch.stack(parts))[1]

    def flatten_spectrum(
        self,
        target: Sequence[Tensor],
        mean: Sequence[Tensor],
        value: Sequence[Tensor],
        decay: float,
        lengths: Tensor,
        iterations: int,
        rows: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor | None]:
        """This rank's part of every flattened whole, gathered one by one to bound the memory."""
        self._check(mean)
        counts = [m for m, _ in self.matrices(mean)]
        moments = rows.split(counts) if rows is not None else [None] * len(counts)
        for k, tensor in enumerate(self._tensors):
            part = blended(mean[k], value[k], decay)
            complete = distributed.whole(part, tensor).contiguous()
            flat = [complete]
            length = lengths[k : k + 1]
            super().flatten_spectrum(flat, flat, flat, decay, length, iterations, moments[k])
            target[k].copy_(distributed.own(complete, tensor))
        return list(target), rows

    def _check(self, arrays: Sequence[Tensor], times: int = 1) -> None:
        own = [distributed.local(t).shape for t in self._tensors]
        assert [x.shape for x in arrays] == own * times
