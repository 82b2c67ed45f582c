"""The spectral update: the averaged gradient with equal singular values, scaled and levelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hybrid_predict.errors import ConfigError
from hybrid_predict.rules.budget import as_matrix, flatten_operations
from hybrid_predict.rules.length import longest_update, magnification, stretch
from hybrid_predict.rules.polynomials import POLYNOMIALS
from hybrid_predict.updates.base import AbstractUpdate, UpdateState

if TYPE_CHECKING:
    from torch import Tensor

    from hybrid_predict.torch.matrices import Roots


@dataclass(frozen=True, kw_only=True)
class SpectralUpdate(AbstractUpdate):
    r"""Moves equally far along all singular directions of the averaged gradient.

    .. math::
        \nu_t = \nu \, (1 + \cos(g, m)), \qquad m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        M = (1 - \nu_t) m + \nu_t g, \qquad S M T = U \Sigma V^\top, \qquad O \approx U V^\top, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P = S \operatorname{diag} (r)^{-1/2} \, O \, T, \qquad
        c = - \min (b \, s, B) \, \|u\|_F \, \frac{P}{\|P\|_F}

    with g the gradient and u the optimizer's update. An element-wise optimizer moves mostly along a
    few large singular directions, although the loss also falls along the small, persistent ones. If
    successive gradients point in opposite directions, as in full-batch training at the edge of
    stability, the newest gradient is mostly oscillation, and :math:`\nu_t` is small.

    S and T are diagonal, see `torch.matrices.flatten`: rows and columns that have much of the
    energy of M get less weight. The factors s of tall matrices and b of short updates are those of
    `rules.length`; the decay :math:`\rho` of moments is ``rules.polynomials.MOMENT_DECAY``.
    Convolutions are read as matrices of shape (output channels, rest).

    Args:
        share: :math:`\kappa` in [0, 1], the share of u that c replaces.
        bound: B, at least 1; None for no bound. If matrices have different learning rates, 1 is
            used.
        decay: :math:`\gamma` in [0, 1), dimensionless.
        newest: :math:`\nu` in [0, ½], the share of a newest gradient orthogonal to the average.
        iterations: Number of polynomials for the orthogonal factor, from 1 to 5.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Orthogonalised momentum: Jordan et al., Muon (2024), https://kellerjordan.github.io/posts/muon
        Polynomials that make it orthogonal: Amsel et al., The Polar Express (2025),
        https://arxiv.org/abs/2505.16932
        Parts of rows by themselves: Khaled et al., MuonBP (2025), https://arxiv.org/abs/2510.16981
        Share of the newest gradient: Ma and Yarats, Quasi-hyperbolic momentum (2019),
        https://arxiv.org/abs/1810.06801
        Gradients that turn back: Cohen et al., Gradient descent on neural networks typically
        occurs at the edge of stability (2021), https://arxiv.org/abs/2103.00065
        Levelled rows: Li et al., NorMuon (2025), https://arxiv.org/abs/2510.05491
        Scales of rows and columns before and after the orthogonal factor: IsoMuon, pull request 370
        of https://github.com/KellerJordan/modded-nanogpt (2026), from the noise of gradients
    """

    reads_gradients: ClassVar[bool] = False

    share: float = 1.0
    bound: float | None = 2.0
    decay: float = 0.95
    newest: float = 0.2
    iterations: int = 3

    def __post_init__(self) -> None:
        _check_range("share", self.share, 0.0, 1.0)
        if self.bound is not None:
            _check_range("bound", self.bound, 1.0, math.inf)
        if isinstance(self.decay, bool) or not 0.0 <= self.decay < 1.0:
            raise ConfigError("decay", "a number in [0, 1)", self.decay)
        _check_range("newest", self.newest, 0.0, 0.5)
        if type(self.iterations) is not int or self.iterations not in POLYNOMIALS:
            raise ConfigError("iterations", "an integer from 1 to 5", self.iterations)

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return a state with zero moments."""
        import torch

        from hybrid_predict.torch.lists import check_history, widest

        check_history(self.decay, history)
        shapes = tuple(as_matrix(x.shape) for x in like)
        pairs = zip(like, shapes, strict=True)
        sizes = [(m + n, m, widest([x]), x.device) for x, (m, n) in pairs]
        energies = [torch.zeros(both, dtype=t, device=d) for both, _, t, d in sizes]
        levels = [torch.zeros(m, dtype=t, device=d) for _, m, t, d in sizes]
        longest = torch.zeros((), dtype=widest(like), device=like[0].device)
        return UpdateState({"energies": energies, "levels": levels}, {"longest": longest}, shapes)

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        matrices: list[Tensor],
        gradients: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return the negated, scaled orthogonal factor of average and newest gradient."""
        from hybrid_predict.torch.matrices import Moments, flatten

        names = Moments._fields
        moments = Moments(*([state.arrays[name][k] for k in members] for name in names))
        roots = self._roots(state, members, gradients)
        return flatten(matrices, self.iterations, moments, state.block, roots)

    def _roots(
        self, state: UpdateState, members: Sequence[int], gradients: Sequence[Tensor]
    ) -> Roots | None:
        """Return the factors of the matrices from the left and from the right, or None."""
        return None

    def operations(self, like: Sequence[Tensor], block: int | None) -> int:
        """Return the operations of the matrix products."""
        gram = not any(x.is_cuda for x in like)
        return flatten_operations([x.shape for x in like], self.iterations, block, gram=gram)

    def lengths(self, state: UpdateState, members: Sequence[int], own: Tensor) -> Tensor:
        """Stretch the optimizer's lengths for tall matrices, and to those of a usual Muon."""
        shapes, key = [state.shapes[k] for k in members], tuple(members)
        longest = state.numbers["longest"] = longest_update(own, state.numbers["longest"])
        if key not in state.constants:  # so that nothing is copied to the device in every step
            state.constants[key] = own.new_tensor([stretch(*shape) for shape in shapes])
        return own * magnification(shapes, longest) * state.constants[key]


def _check_range(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and least <= value <= most and math.isfinite(value)):  # type: ignore[operator, arg-type]
        above = f"a finite number, at least {least:g}"
        raise ConfigError(name, above if most == math.inf else f"in [{least:g}, {most:g}]", value)
