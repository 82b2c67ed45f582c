"""A movement of named weights as a value, and the writing of weights in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hybrid_predict.tensors.lists import HALF


@final
@dataclass(frozen=True)
class WeightDelta:
    r"""A movement of weights, stored as directions and factors, so that scaling costs nothing.

    .. math:: \hat\Delta_k = f_k \, d_k

    Args:
        names: Names of the K parameters, such as ``"encoder.0.weight"``.
        directions: Tensors d_k, shaped like the parameters, in units of the parameters.
        factors: f_k, dimensionless numbers.
    """

    names: tuple[str, ...]
    directions: tuple[Tensor, ...]
    factors: tuple[float, ...]

    def scaled(self, factor: float) -> WeightDelta:
        """Return the same movement, ``factor`` times as long."""
        return WeightDelta(self.names, self.directions, tuple([factor * f for f in self.factors]))

    def of(self, names: Sequence[str]) -> WeightDelta:
        """Return the part of the movement that concerns these parameters."""
        if self.names == tuple(names):
            return self
        chosen = set(names)
        rows = zip(self.names, self.directions, self.factors, strict=True)
        kept = [row for row in rows if row[0] in chosen]
        return WeightDelta(*zip(*kept, strict=True)) if kept else WeightDelta((), (), ())


def write_rounded(value: Tensor, wanted: Tensor, carry: Tensor) -> None:
    r"""Write 32-bit weights to half precision, and compensate the rounding error in later writes.

    .. math:: \theta' = R(w + c), \qquad c \leftarrow w + c - \theta'

    with R the rounding, w ``wanted`` (overwritten) and c ``carry`` in 32 bits. Without compensation
    every movement shorter than half the spacing of 16-bit floats would be lost.

    References:
        Compensated summation: Kahan (1965), https://doi.org/10.1145/363707.363723
    """
    wanted.add_(carry)
    value.copy_(wanted)
    torch.sub(wanted, value, out=carry)


def write(values: list[Tensor], wanted: list[Tensor], carries: Sequence[Tensor]) -> None:
    """Write new weights of at least 32 bits, which may be overwritten.

    ``carries`` has the rounding errors by weight, and is empty if none is in half precision.
    """
    if not carries:
        torch._foreach_copy_(values, wanted)
        return
    for value, new, carry in zip(values, wanted, carries, strict=True):
        if value.dtype in HALF:
            write_rounded(value, new, carry)
        else:
            value.copy_(new)
