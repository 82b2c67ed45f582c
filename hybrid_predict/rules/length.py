"""The lengths of corrected updates, from the lengths of the optimizer's own updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

STRETCH = 2.0
"""Largest factor for tall matrices. Their updates may be longer: Yang, Simon and Bernstein, A
spectral condition for feature learning (2023), https://arxiv.org/abs/2310.17813"""

MUON_RATE = 0.02
"""Learning rate of the Muon whose longest updates corrected ones may reach: Jordan et al., Muon
(2024), https://kellerjordan.github.io/posts/muon"""

MAGNIFY = 4.0  # largest factor with which the updates of all matrices are lengthened (decision 14)
_TINY = 1e-30


def stretch(rows: int, columns: int) -> float:
    r"""Return the factor for a matrix, :math:`\min (S, \max (1, \sqrt{m / n}))`."""
    return min(STRETCH, max(1.0, math.sqrt(rows / max(1, columns))))


def longest_update(lengths: Any, before: Any) -> Any:
    """Return the length of all updates together, or the longest one before, 0-dim."""
    return ((lengths * lengths).sum() ** 0.5).clip(min=before)


def magnification(shapes: Sequence[tuple[int, int]], longest: Any) -> Any:
    r"""Return the factor that makes the longest updates as long as Muon's, 0-dim.

    .. math:: b = \min \bigl(M, \max (1, \eta / \hat\eta)\bigr), \qquad
        \hat\eta = \max_t \Bigl( \sum_k \|u_{tk}\|_F^2 / \sum_k \min (m_k, n_k) \Bigr)^{1/2}

    for K matrices of m rows and n columns, with the ``longest`` length of all updates together.
    """
    unit = math.sqrt(sum(map(min, shapes)))
    return (MUON_RATE * unit / longest.clip(min=_TINY)).clip(1.0, MAGNIFY)
