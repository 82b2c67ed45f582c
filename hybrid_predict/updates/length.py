"""The lengths of corrected updates, from those of the optimizer's own updates."""

from __future__ import annotations

import math
from typing import Any

USUAL = 0.02
"""Root mean square of the lengths of rows up to which corrected updates are longer than the
optimizer's, as that of Muon's updates: Jordan et al., Muon (2024),
https://kellerjordan.github.io/posts/muon"""

LONGER = 0.66
"""Exponent of the period with which rarer corrections are longer: LionMuon (2026),
https://arxiv.org/abs/2605.19811"""


def usual_length(rows: int) -> float:
    """Return the length up to which updates of so many rows are longer, at the largest rate."""
    return USUAL * math.sqrt(rows)


def lengths(
    xp: Any, own: Any, relative: Any, along: Any, slopes: Any, bound: float, period: int
) -> Any:
    r"""Return the lengths of corrected updates, shape (K,): :math:`\ell` of `AbstractUpdate`.

    .. math:: \ell_0 = 0.02 \, \sqrt{r} \, \frac{\eta}{\eta_{\max}}

    for r rows, the learning rate :math:`\eta` and the largest one so far. A limit that did not fall
    with the rate would keep updates long to the end of a schedule. Where a direction goes uphill,
    or a product is not finite, the first ratio counts as 1.

    Args:
        xp: The library of the arrays: torch, NumPy or ``jax.numpy``.
        own: Lengths of the optimizer's updates, shape (K,).
        relative: The same in units of :math:`\ell_0`, shape (K,).
        along: Products of these updates with the averaged gradients, shape (K,).
        slopes: Products of the directions with these, shape (K,).
        bound: B, at least 1.
        period: P, at least 1.
    """
    downhill = slopes < 0
    ratio = along / xp.where(downhill, own * slopes, 1.0)
    factors = xp.where(downhill & xp.isfinite(ratio), ratio, 1.0)
    room = 1.0 / xp.where(relative > 0, relative, 1.0)
    return own * xp.clip(xp.minimum(factors, room), 1.0, bound) * period**LONGER
