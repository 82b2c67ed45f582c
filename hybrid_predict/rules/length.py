"""The lengths of corrected updates, from those of the optimizer's own updates."""

from __future__ import annotations

from typing import Any

LONGER = 0.66
"""Exponent of the period with which rarer corrections are longer: LionMuon (2026),
https://arxiv.org/abs/2605.19811"""


def lengths(xp: Any, own: Any, along: Any, slopes: Any, bound: float, period: int) -> Any:
    r"""Return the lengths of corrected updates, shape (K,).

    .. math:: \ell = P^{.66} \, \|u\| \; \min \Bigl( B, \max \Bigl( 1,
        \frac{\langle m, u \rangle}{\|u\| \, \langle m, D \rangle} \Bigr) \Bigr)

    Where a direction goes uphill, or a product is not finite, the ratio counts as 1.

    Args:
        xp: The library of the arrays: torch, NumPy or ``jax.numpy``.
        own: Lengths of the optimizer's updates, shape (K,).
        along: Their products with the averaged gradients, shape (K,).
        slopes: Products of the directions with these, shape (K,).
        bound: B, at least 1.
        period: P, at least 1.
    """
    downhill = slopes < 0
    ratio = along / xp.where(downhill, own * slopes, 1.0)
    factors = xp.where(downhill & xp.isfinite(ratio), ratio, 1.0)
    return own * xp.clip(factors, 1.0, bound) * period**LONGER
