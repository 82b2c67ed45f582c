r"""Functions near the inverse square root of a positive matrix, by matrix products alone.

With A = X Xᵀ, a function :math:`p(A) \approx A^{-1/2}` makes X orthogonal: p(A) X is near its
orthogonal factor. Eigenvalues of A far below the largest stay below: one of :math:`\lambda` becomes
:math:`\lambda \, p(\lambda)^2`, near one from :math:`\ell^2` to one.

One step of Halley's iteration is one inverse (Nakatsukasa, Bai and Gygi, Optimizing Halley's
iteration for computing the matrix polar decomposition, 2010, https://doi.org/10.1137/090774999),
which takes the least operations; it needs 32 bits. Polynomials need 16:

.. math:: X_{k+1} = a_k X_k + b_k (X_k X_k^\top) X_k + c_k (X_k X_k^\top)^2 X_k

The k-th minimises the largest error :math:`|1 - p(\sigma)|` over the interval to which those before
it map :math:`[\ell, 1]` (Amsel et al., The Polar Express, 2025, https://arxiv.org/abs/2505.16932);
a linear program finds its coefficients. The quintic iteration comes from Muon (Jordan et al.,
2024).
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

CUSHION = 1.01  # keeps singular values below one despite rounding; above one polynomials diverge


@final
class Halley(NamedTuple):
    r"""Coefficients of :math:`p(A) = d I + e \, (I + c A)^{-1}`."""

    d: float
    e: float
    c: float


def halley(least: float) -> Halley:
    r"""Return the step that is best for singular values from :math:`\ell` to one.

    .. math:: \gamma = \bigl( 4 (1 - \ell^2) / \ell^4 \bigr)^{1/3}, \qquad
        a = \sqrt{1 + \gamma} + \tfrac12 \sqrt{8 - 4 \gamma
            + 8 (2 - \ell^2) / (\ell^2 \sqrt{1 + \gamma})}, \\
        b = (a - 1)^2 / 4, \qquad c = a + b - 1, \qquad d = b / c, \qquad e = a - b / c
    """
    square = least * least
    gamma = (4.0 * (1.0 - square) / square**2) ** (1.0 / 3.0)
    root = math.sqrt(1.0 + gamma)
    inner = 8.0 - 4.0 * gamma + 8.0 * (2.0 - square) / (square * root)
    a = root + 0.5 * math.sqrt(inner)
    b = (a - 1.0) ** 2 / 4.0
    c = a + b - 1.0
    return Halley(b / c, a - b / c, c)


LEAST = {2: 0.05, 3: 0.01}
r""":math:`\ell` by the number of polynomials."""

POLYNOMIALS: dict[int, tuple[tuple[float, float, float], ...]] = {
    2: ((6.7524, -18.351, 13.2633), (2.5379, -1.8747, 0.4413)),
    3: ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)),
}
"""Coefficients a, b, c of each polynomial, by the number of polynomials."""

FACTOR, ROOT = halley(0.03), halley(0.01)
"""Halley's step for orthogonal factors, and for inverse square roots of covariances."""

MOMENT_DECAY = 0.95
"""Of the second moments of rows, where .9 to .99 made no difference (decision 1), and of the
energies of rows and columns."""
MOST_ENERGY = 4.0
"""Range of a row's or column's energy around the mean, beyond which its scale does not change
(decision 1)."""
ROOT_FLOOR = 2.0**-7  # added to the diagonals of covariances in 16 bits, in Frobenius norms
