"""The backend for sharded tensors: computes on local shards, with the results of full tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.tensors import ranks, shards
from hybrid_predict.tensors.torch import TorchBackend, complements, cosines, lerp


@final
class ShardedBackend(TorchBackend):
    """Kernels on local shards; norms, inner products and spectra are those of the full tensors.

    Every rank has to call the same kernels in the same order.

    Args:
        tensors: The parameters. Every list of arrays goes with them one by one, as local shards.
        history: Type in which averages are stored.
    """

    def __init__(self, tensors: Sequence[Tensor], history: str = "float32") -> None:
        super().__init__(history)
        self._tensors = list(tensors)
        self._roots = shards.norm_factors(tensors) or [1.0] * len(tensors)

    def matrices(self, like: Sequence[Tensor]) -> list[tuple[int, int]]:
        """Return rows and columns of the full tensors."""
        return super().matrices(self._tensors)

    def norms(self, arrays: Sequence[Tensor]) -> Tensor:
        """Return the norm of each full tensor, shape (K,), at least 32-bit; one all-reduce.

        Several lists of arrays, one after the other, also need only one all-reduce.
        """
        times = len(arrays) // max(1, len(self._tensors))
        self._check(arrays, times)
        norms = super().norms(arrays)
        return ranks.combine(self._counted(norms, 1), norms[:0])[0]

    def distances(
        self, left: Sequence[Tensor], right: Sequence[Tensor], factors: Sequence[Any]
    ) -> Tensor:
        """Return the norm of each full left[k] - factors[k] * right[k]; one all-reduce."""
        self._check(left)
        norms = super().distances(left, right, factors)
        return ranks.combine(self._counted(norms, 1), norms[:0])[0]

    def dots(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Return the inner product of each pair of full tensors, shape (K,); one all-reduce.

        Several lists of pairs, one after the other, also need only one all-reduce.
        """
        self._check(left, len(left) // max(1, len(self._tensors)))
        dots = super().dots(left, right)
        return ranks.combine(dots[:0], self._counted(dots, 2))[1]

    def angles(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return norms and cosines of full tensors, shape (K,); one all-reduce."""
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
        roots: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> tuple[list[Tensor], Sequence[Tensor] | None]:
        """Return the local shards of the flattened full tensors; one is gathered at a time."""
        self._check(mean)
        shares, found = complements(decays), []
        for k, tensor in enumerate(self._tensors):
            part = lerp(mean[k], value[k], shares[k])
            complete = [shards.full_tensor(part, tensor).contiguous()]
            own = None if rows is None else [rows[k]]
            sides = None if roots is None else (roots[0][k : k + 1], roots[1][k : k + 1])
            flat, _ = super().flatten_spectrum(
                complete, complete, [1.0], iterations, own, block, sides
            )
            found.append(shards.local_shard(flat[0], tensor).clone())
        return found, rows

    def covariances(
        self,
        left: Sequence[Tensor],
        right: Sequence[Tensor],
        value: Sequence[Tensor],
        decay: float,
        due: Sequence[Any],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update the covariances of full tensors on every rank; one is gathered at a time."""
        self._check(value)
        for k, tensor in enumerate(self._tensors):
            if due[k] and left[k].numel() + right[k].numel():
                complete = shards.full_tensor(value[k], tensor)
                sides = left[k : k + 1], right[k : k + 1]
                super().covariances(*sides, [complete], decay, [True])
        return list(left), list(right)

    def _counted(self, values: Tensor, power: int) -> Tensor:
        """Scale one value per array, so that entries on several ranks count once."""
        roots = [root**power for root in self._roots] * (len(values) // max(1, len(self._roots)))
        return torch.stack(torch._foreach_mul(list(values), roots))

    def _check(self, arrays: Sequence[Tensor], times: int = 1) -> None:
        own = [shards.local(t).shape for t in self._tensors]
        assert [x.shape for x in arrays] == own * times
