"""The spectral update: the averaged gradient with equal singular values and levelled rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors import AbstractBackend
from hybrid_predict.tensors.base import check_history
from hybrid_predict.tensors.polynomials import POLYNOMIALS
from hybrid_predict.updates.base import AbstractUpdate, UpdateState

_TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class SpectralUpdate(AbstractUpdate):
    r"""Moves equally far along all singular directions of the averaged gradient.

    .. math::
        \nu_t = \nu \, (1 + \cos(g, m)), \qquad m \leftarrow \gamma m + (1 - \gamma) g, \qquad
        (1 - \nu_t) m + \nu_t g = U \Sigma V^\top, \qquad O \approx U V^\top, \\
        r_i \leftarrow \rho r_i + (1 - \rho) \langle O_{ij}^2 \rangle_j, \qquad
        P_{ij} = O_{ij} / \sqrt{r_i}, \qquad
        c = - \min (b \, s, B) \, \|u\|_F \, \frac{P}{\|P\|_F}, \\
        s = \min \bigl(S, \max (1, \sqrt{\text{rows} / \text{columns}})\bigr), \qquad
        b = \min \bigl(M, \max (1, \eta / \hat\eta)\bigr)

    with g the gradient and u the optimizer's update. An element-wise optimizer moves mostly along a
    few large singular directions, although the loss also falls along the small, persistent ones. If
    successive gradients point in opposite directions, as in full-batch training at the edge of
    stability, the newest gradient is mostly oscillation, and :math:`\nu_t` is small.

    The factor b makes the longest corrected updates as long as those of Muon with learning rate
    :math:`\eta`. The longest updates of the optimizer so far are those of Muon with the rate

    .. math:: \hat\eta = \max_t \Bigl( \sum_k \|u_{tk}\|_F^2 / \sum_k \min (m_k, n_k)
        \Bigr)^{1/2},

    over the tensors of one optimizer. Convolutions are read as matrices of shape (output channels,
    rest). The decay :math:`\rho` of row moments is ``tensors.base.ROW_MEMORY``.

    Args:
        share: :math:`\kappa` in [0, 1], the share of u that c replaces.
        bound: B, at least 1; None for no bound. If matrices have different learning rates, 1 is
            used.
        decay: :math:`\gamma` in [0, 1), dimensionless.
        newest: :math:`\nu` in [0, 1], the share of the newest gradient. With ``damped`` it is the
            share for a gradient orthogonal to the average, and at most ½.
        damped: Whether the share of the newest gradient depends on its angle with the average.
        level_rows: Whether to level the rows; otherwise P is O.
        stretch: S, the largest factor for tall matrices, at least 1.
        muon_rate: :math:`\eta`, above 0, dimensionless.
        magnify: M, the largest factor with which updates are lengthened, at least 1.
        iterations: Number of polynomials for the orthogonal factor, from 1 to 5.

    Raises:
        ConfigError: If an argument is invalid.

    References:
        Orthogonalised momentum, and its rate: Jordan et al., Muon (2024),
        https://kellerjordan.github.io/posts/muon
        Polynomials that make it orthogonal: Amsel et al., The Polar Express (2025),
        https://arxiv.org/abs/2505.16932
        Parts of rows by themselves: Khaled et al., MuonBP (2025),
        https://arxiv.org/abs/2510.16981
        Share of the newest gradient: Ma and Yarats, Quasi-hyperbolic momentum (2019),
        https://arxiv.org/abs/1810.06801
        Gradients that turn back: Cohen et al., Gradient descent on neural networks typically
        occurs at the edge of stability (2021), https://arxiv.org/abs/2103.00065
        Longer updates of tall matrices: Yang, Simon and Bernstein, A spectral condition for feature
        learning (2023), https://arxiv.org/abs/2310.17813
        Levelled rows: Li et al., NorMuon (2025), https://arxiv.org/abs/2510.05491
    """

    share: float = 1.0
    bound: float | None = 2.0
    decay: float = 0.95
    newest: float = 0.2
    damped: bool = True
    level_rows: bool = True
    stretch: float = 2.0
    muon_rate: float = 0.02
    magnify: float = 4.0
    iterations: int = 3

    def __post_init__(self) -> None:
        _check_range("share", self.share, 0.0, 1.0)
        if self.bound is not None:
            _check_range("bound", self.bound, 1.0, math.inf)
        check_decay("decay", self.decay)
        for name in ("damped", "level_rows"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))
        _check_range("newest", self.newest, 0.0, 0.5 if self.damped else 1.0)
        for name in ("stretch", "magnify"):
            _check_range(name, getattr(self, name), 1.0, math.inf)
        if not 0.0 < self.muon_rate < math.inf:
            raise ConfigError("muon_rate", "a finite number above 0", self.muon_rate)
        if type(self.iterations) is not int or self.iterations not in POLYNOMIALS:
            raise ConfigError("iterations", "an integer from 1 to 5", self.iterations)

    def init(self, like: Sequence[Any], backend: AbstractBackend[Any]) -> UpdateState:
        """Return a state with zero row moments."""
        check_history(self.decay, backend)
        rows = backend.zero_rows(like)
        arrays = {"rows": rows} if self.level_rows else {}
        numbers = {"longest": backend.constants([0.0], like).sum()}
        shapes = tuple(backend.matrices(like))
        tall = [max(1.0, math.sqrt(rows / max(1, columns))) for rows, columns in shapes]
        stretch = backend.constants([min(self.stretch, t) for t in tall], like)
        return UpdateState(arrays, numbers, shapes, stretch)

    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        average: Sequence[Any],
        gradients: Sequence[Any],
        cosines: Any,
        backend: AbstractBackend[Any],
    ) -> list[Any]:
        """Return the negated, levelled orthogonal factor of average and newest gradient."""
        keep = 1.0 - self.newest * (1.0 + cosines) if self.damped else [1.0 - self.newest] * len(
            members
        )  # fmt: skip
        rows = [state.arrays["rows"][k] for k in members] if self.level_rows else None
        roots = self._roots(state, members, gradients, backend)
        flat, moments = backend.flatten_spectrum(
            average, gradients, keep, self.iterations, rows, state.block, roots
        )
        for k, row in zip(members, moments or (), strict=False):
            state.arrays["rows"][k] = row
        return flat

    def _roots(
        self,
        state: UpdateState,
        members: Sequence[int],
        gradients: Sequence[Any],
        backend: AbstractBackend[Any],
    ) -> tuple[list[Any], list[Any]] | None:
        """What matrices are multiplied with from the left and from the right; None for nothing."""
        return None

    def operations(
        self, like: Sequence[Any], backend: AbstractBackend[Any], block: int | None
    ) -> int:
        """Return the operations of the matrix products."""
        return backend.flatten_operations(like, self.iterations, block)

    def lengths(self, state: UpdateState, members: Sequence[int], own: Any) -> Any:
        """Stretch the optimizer's lengths for tall matrices, and to those of a usual Muon."""
        unit = math.sqrt(sum(min(state.shapes[k]) for k in members))
        longest = ((own * own).sum() ** 0.5).clip(min=state.numbers["longest"])
        state.numbers["longest"] = longest
        factor = (self.muon_rate * unit / longest.clip(min=_TINY)).clip(1.0, self.magnify)
        if (key := tuple(members)) not in state.parts:
            everyone = len(key) == len(state.shapes)
            state.parts[key] = state.stretch if everyone else state.stretch[list(key)]
        return own * factor * state.parts[key]


def check_decay(name: str, value: object) -> None:
    """Check the decay of a running average.

    Raises:
        ConfigError: If it is no number in [0, 1).
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise ConfigError(name, "a number in [0, 1)", value)


def _check_range(name: str, value: object, least: float, most: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and least <= value <= most and math.isfinite(value)):  # type: ignore[operator, arg-type]
        expected = f"a finite number, at least {least:g}"
        raise ConfigError(
            name, expected if math.isinf(most) else f"in [{least:g}, {most:g}]", value
        )
