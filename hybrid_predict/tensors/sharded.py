"""Kernels on this rank's parts of sharded tensors, with the results of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybrid_predict.tensors import ranks, shards
from hybrid_predict.tensors.torch import TorchBackend, complements, cosines, lerp


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
        self._roots = shards.norm_factors(tensors) or [1.0] * len(tensors)

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
        return ranks.combine(self._counted(norms, 1), norms[:0])[0]

    def distances(
        self, left: Sequence[Tensor], right: Sequence[Tensor], factors: Sequence[Any]
    ) -> Tensor:
        """Frobenius norm of each full left[k] - factors[k] * right[k]; one all-reduce."""
        self._check(left)
        norms = super().distances(left, right, factors)
        return ranks.combine(self._counted(norms, 1), norms[:0])[0]

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Inner product of each pair of whole tensors, shape (K,); one all-reduce."""
        self._check(left)
        dots = super().dots(left, right)
        return ranks.combine(dots[:0], self._counted(dots, 2))[1]

    def angles(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Norms of the left wholes, and cosines with the right ones, shape (K,); one all-reduce."""
        self._check([*left, *right], 2)
        own, dots = super().norms([*left, *right]), super().dots(left, right)
        norms, dots = ranks.combine(self._counted(own, 1), self._counted(dots, 2))
        return norms[: len(left)], cosines(norms, dots)

    def flatten_spectrum(
        self,
        mean: Sequence[Tensor],
        value: Sequence[Tensor],
        decays: Sequence[float] | Tensor,
        iterations: int,
        rows: Sequence[Tensor] | None = None,
        block: int | None = None,
    ) -> tuple[list[Tensor], Sequence[Tensor] | None]:
        """This rank's part of every flattened whole, gathered one by one to bound the memory."""
        self._check(mean)
        shares, found = complements(decays), []
        for k, tensor in enumerate(self._tensors):
            part = lerp(mean[k], value[k], shares[k])
            complete = [shards.full_tensor(part, tensor).contiguous()]
            own = None if rows is None else [rows[k]]
            flat, _ = super().flatten_spectrum(complete, complete, [1.0], iterations, own, block)
            found.append(shards.local_shard(flat[0], tensor).clone())
        return found, rows

    def _counted(self, values: Tensor, power: int) -> Tensor:
        """One value per array, lessened so that what several ranks hold counts once."""
        roots = [root**power for root in self._roots] * (len(values) // max(1, len(self._roots)))
        return torch.stack(torch._foreach_mul(list(values), roots))

    def _check(self, arrays: Sequence[Tensor], times: int = 1) -> None:
        own = [shards.local(t).shape for t in self._tensors]
        assert [x.shape for x in arrays] == own * times
