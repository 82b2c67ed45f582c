r"""Odd polynomials that move every singular value towards one.

.. math:: X_0 = M / (1.01 \, \|M M^\top\|_F^{1/2}), \qquad
    X_{k+1} = a_k X_k + b_k (X_k X_k^\top) X_k + c_k (X_k X_k^\top)^2 X_k

The singular values of :math:`X_0` are at most one, and the largest is not far below one. The k-th
polynomial minimises the largest error :math:`|1 - p(\sigma)|` over the interval to which the
polynomials before it map :math:`[\ell, 1]` (Amsel et al., The Polar Express, 2025,
https://arxiv.org/abs/2505.16932); a linear program finds its coefficients. The quintic iteration
comes from Muon (Jordan et al., 2024).
"""

from __future__ import annotations

CUSHION = 1.01  # keeps singular values below one despite rounding; above one they diverge

LEAST = {1: 0.2, 2: 0.05, 3: 0.01, 4: 0.003, 5: 0.001}
r""":math:`\ell` by the number of polynomials; smaller singular values stay below the others."""

POLYNOMIALS: dict[int, tuple[tuple[float, float, float], ...]] = {
    1: ((4.2388, -8.7001, 5.6813),),
    2: ((6.7524, -18.351, 13.2633), (2.5379, -1.8747, 0.4413)),
    3: ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)),
    4: (
        (8.3837, -24.7659, 18.3571),
        (4.0434, -3.0114, 0.5695),
        (3.5056, -2.6267, 0.5257),
        (2.4901, -1.8343, 0.4368),
    ),
    5: (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.563),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
}
"""Coefficients a, b, c of each polynomial, by the number of polynomials."""

ROOT_POLYNOMIALS = (3, 2)  # for the inverse square root of a covariance, and for the root of that
ROOT_PRODUCTS = 17  # matrix products in the computation of an inverse fourth root
ROOT_FLOOR = 2.0**-7  # added to the diagonals of covariances in 16 bits, in Frobenius norms
MOMENT_DECAY = 0.95
"""Of the second moments of rows, where .9 to .99 made no difference (decision 13), and of the
energies of rows and columns."""
MOST_ENERGY = 4.0
"""Range of a row's or column's energy around the mean, beyond which its scale does not change
(decision 32)."""
