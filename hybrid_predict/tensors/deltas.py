"""Movements of named weights: a forecast as a value, and a movement in place with its undo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hybrid_predict.tensors.lists import HALF, add_scaled, clones, upcast


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


@final
class Movement:
    """Copies weights, moves them in place by a :class:`WeightDelta`, and undoes the movement.

    Args:
        delta: The movement.
        parameters: The parameters, one per name.
        local: Returns the local shard of a parameter, wherever it is now.
        written: Called after every write.
        carries: Kahan compensation of half-precision weights by name, in 32 bits; updated in place.
    """

    def __init__(
        self,
        delta: WeightDelta,
        parameters: Sequence[Tensor],
        local: Callable[[Tensor], Tensor],
        written: Callable[[], None],
        carries: dict[str, Tensor] | None = None,
    ) -> None:
        self.delta = delta
        self.parameters = list(parameters)
        self._local = local
        self._written = written
        values = [local(p) for p in parameters]
        pairs = zip(delta.names, values, strict=True)
        self._carries = [(carries or {}).get(n) if v.dtype in HALF else None for n, v in pairs]
        self._copies = clones(values)
        self._kept = [None if c is None else c.clone() for c in self._carries]

    def apply(self) -> None:
        """Move the weights."""
        delta = self.delta
        values = [self._local(p) for p in self.parameters]
        columns = zip(values, delta.directions, delta.factors, self._carries, strict=True)
        plain: list[tuple[Tensor, Tensor, float]] = []
        with torch.no_grad():
            for value, direction, factor, carry in columns:
                if carry is not None:
                    write_rounded(value, value.float() + factor * upcast(direction), carry)
                else:
                    plain.append((value, direction, factor))
            if plain:
                add_scaled(*map(list, zip(*plain, strict=True)))
        self._written()

    def undo(self, members: Sequence[int]) -> None:
        """Undo the movement of weights, by position in the delta, bit for bit.

        It may come between a forward and a backward pass, so tensors keep their versions.
        """
        for k in members:
            # User code may have moved the weights to other memory.
            self._local(self.parameters[k]).data.copy_(self._copies[k])
            carry = self._carries[k]
            kept = self._kept[k]
            if carry is not None and kept is not None:
                carry.copy_(kept)
        self._written()


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
