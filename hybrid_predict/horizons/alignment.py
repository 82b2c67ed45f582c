"""A horizon per tensor that grows while forecasts point downhill and shrinks when they do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hybrid_predict.config import KINDS
from hybrid_predict.errors import ConfigError
from hybrid_predict.horizons.base import AbstractHorizon


@dataclass(frozen=True, kw_only=True)
class AlignmentHorizon(AbstractHorizon):
    r"""Integrate the alignment c of the applied forecasts in the logarithm of the gain.

    .. math:: \log(1 + h) \leftarrow \operatorname{clip}
        \bigl(\log(1 + h) + \eta (c - c_0),\;
        \log(1 + h_\text{floor}),\; \log(1 + h_\text{longest})\bigr)

    A rejected forecast halves :math:`\log(1 + h)`, down to the floor.

    Args:
        floors: Shortest horizon per parameter kind, in updates; 0 for kinds that are not listed.
        longest: Longest horizon in updates.
        rate: :math:`\eta`, dimensionless, positive.
        target: :math:`c_0`, the alignment in (-1, 1) at which a horizon stays as it is.

    Raises:
        ConfigError: If an argument is out of range.

    References:
        Hypergradient descent: Baydin et al. (2018), https://arxiv.org/abs/1703.04782
    """

    floors: Mapping[str, float] = field(default_factory=lambda: {"hidden": 1.0})
    longest: float = 31.0
    rate: float = 0.2
    target: float = 0.015

    def __post_init__(self) -> None:
        if not (math.isfinite(self.longest) and self.longest > 0):
            raise ConfigError("longest", "a positive, finite number", self.longest)
        for kind, floor in self.floors.items():
            if kind not in KINDS:
                raise ConfigError("floors", f"parameter kinds out of {', '.join(KINDS)}", kind)
            if not 0 <= floor <= self.longest:
                raise ConfigError(f"floors[{kind!r}]", f"in [0, {self.longest:g}]", floor)
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError("rate", "a positive, finite number", self.rate)
        if not -1 < self.target < 1:
            raise ConfigError("target", "a number in (-1, 1)", self.target)

    def init(self, kinds: Sequence[str]) -> list[float]:
        """Every tensor at its floor."""
        return [self._floor(kind) for kind in kinds]

    def horizons(self, state: Sequence[float]) -> list[float]:
        """The gain of every tensor, less one."""
        return [math.expm1(gain) for gain in state]

    def update(
        self, state: Sequence[float], alignments: Sequence[float], kinds: Sequence[str]
    ) -> list[float]:
        """Every gain moved by its alignment, within its bounds."""
        most = math.log1p(self.longest)
        return [
            min(most, max(self._floor(kind), gain + self.rate * (c - self.target)))
            for gain, c, kind in zip(state, alignments, kinds, strict=True)
        ]

    def reject(self, state: Sequence[float], kinds: Sequence[str]) -> list[float]:
        """Every gain halved, down to its floor."""
        return [max(self._floor(kind), gain / 2) for gain, kind in zip(state, kinds, strict=True)]

    def _floor(self, kind: str) -> float:
        return math.log1p(self.floors.get(kind, 0.0))
