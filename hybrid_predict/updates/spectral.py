"""The spectral update: the averaged gradient with equal singular values, scaled and levelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from hybrid_predict.config import check_history
from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors.shapes import as_matrix, direction_operations
from hybrid_predict.updates.base import AbstractUpdate, UpdateState

if TYPE_CHECKING:
    from torch import Tensor

COVARIANCE_DECAY, SEEN_EVERY = 0.95, 5
"""Decay of covariances per full step, and full steps from one update of them and their roots to the
next."""

EARLY = 10  # first corrections of a matrix that all update its covariance


@final
@dataclass(frozen=True, kw_only=True)
class SpectralUpdate(AbstractUpdate):
    r"""Moves equally far along all singular directions of the averaged gradient.

    .. math::
        \nu_t = \nu \, (1 + \cos(g, m)), \qquad m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        M = (1 - \nu_t) m + \nu_t g, \\
        L \leftarrow \rho L + (1 - \rho) \, M M^\top / \|M\|_F^2, \qquad
        L^{-1/2} M T = U \Sigma V^\top, \qquad O \approx U V^\top, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        D \propto - \operatorname{diag} (r)^{-1/2} \, O \, T

    with g the gradient, for a matrix with at least as many columns as rows; for others the root is
    that of the columns. An element-wise optimizer moves mostly along a few large singular
    directions, although the loss also falls along the small, persistent ones. The root gives less
    weight to rows that are large or correlated in the averaged gradients of the last full steps. If
    successive gradients point in opposite directions, as in full-batch training at the edge of
    stability, the newest gradient is mostly oscillation, and :math:`\nu_t` is small.

    T is diagonal, see `tensors.matrices.flatten`: columns that have much of the energy of M get
    less weight. The decay :math:`\rho` of moments is ``tensors.polynomials.MOMENT_DECAY``, that of
    the covariance is :data:`COVARIANCE_DECAY`. Convolutions are read as matrices of shape (output
    channels, rest). Covariance and root take at most as much memory as the weights and a diagonal.

    Args:
        share: :math:`\kappa` in [0, 1], the share of u that is replaced.
        bound: B, the largest length of a corrected update in lengths of u, at least 1; times
            :math:`P^{.66}` where matrices take turns.
        decay: :math:`\gamma` in [0, 1), dimensionless.
        newest: :math:`\nu` in [0, ½], the share of a newest gradient orthogonal to the average.
        longest: Longest side that has a covariance, at least 0; without one, a diagonal matrix like
            T takes the place of the root.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Orthogonalised momentum: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon
        Root of one covariance: An et al., ASGO (2025), https://arxiv.org/abs/2503.20762
        Share of the newest gradient: Ma and Yarats, Quasi-hyperbolic momentum (2019),
        https://arxiv.org/abs/1810.06801
        Gradients that turn back: Cohen et al., Gradient descent on neural networks typically
        occurs at the edge of stability (2021), https://arxiv.org/abs/2103.00065
        Levelled rows: Li et al., NorMuon (2025), https://arxiv.org/abs/2510.05491
        Scales of columns before and after the orthogonal factor: IsoMuon, pull request 370
        of https://github.com/KellerJordan/modded-nanogpt (2026), from the noise of gradients
    """

    share: float = 1.0
    bound: float = 6.0
    decay: float = 0.95
    newest: float = 0.2
    longest: int = 8192

    def __post_init__(self) -> None:
        _check_range("share", self.share, 0.0, 1.0)
        _check_range("bound", self.bound, 1.0, math.inf)
        if isinstance(self.decay, bool) or not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        _check_range("newest", self.newest, 0.0, 0.5)
        if type(self.longest) is not int or self.longest < 0:
            raise ConfigError("longest", "an integer of at least 0", self.longest)

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return a state with zero moments."""
        import torch

        from hybrid_predict.tensors.lists import stored_as, upcast

        check_history(self.decay, history)
        state: dict[str, list[Tensor]] = {"energies": [], "levels": [], "roots": [], "steps": []}
        for x in like:
            rows, columns = as_matrix(x.shape)
            short = min(rows, columns)
            side = short if short <= self.longest else 0
            roots = torch.zeros(side * (side + 1), dtype=stored_as(history, x), device=x.device)
            moments = upcast(roots)
            state["energies"].append(moments.new_zeros(rows + columns))
            state["levels"].append(moments.new_zeros(rows))
            state["roots"].append(roots)
            # On the host, so that reading them does not wait.
            state["steps"].append(torch.zeros((), dtype=torch.int64, device="cpu"))
        return UpdateState(state)

    def direction(
        self, state: UpdateState, members: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        """Return the negated, scaled orthogonal factor of average and newest gradient."""
        import torch

        from hybrid_predict.tensors.matrices import Moments, flatten, observe

        arrays = state.arrays
        every = seen_every(state.period)
        steps = [arrays["steps"][k] for k in members]
        known = enumerate(torch.stack(steps).tolist())
        due = [position for position, step in known if step < EARLY or step % every == 0]
        torch._foreach_add_(steps, 1)
        roots = [arrays["roots"][members[position]] for position in due]
        decay = COVARIANCE_DECAY ** (every * state.period)
        observe(roots, [matrices[position] for position in due], decay)
        moments = Moments(*([arrays[name][k] for k in members] for name in Moments._fields))
        return flatten(matrices, moments)

    def operations(self, like: Sequence[Tensor], period: int) -> int:
        """Return the operations of the matrix products."""
        products = any(x.device.type != "cpu" for x in like)
        shapes = [x.shape for x in like]
        every = seen_every(period)
        return direction_operations(shapes, self.longest, every, products=products)


def seen_every(period: int) -> int:
    """Return the corrections of a matrix from one that updates its covariance to the next."""
    return max(1, SEEN_EVERY // period)


def _check_range(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and least <= value <= most and math.isfinite(value)):  # type: ignore[operator, arg-type]
        above = f"a finite number, at least {least:g}"
        raise ConfigError(name, above if most == math.inf else f"in [{least:g}, {most:g}]", value)
