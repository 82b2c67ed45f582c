"""The interface of a corrected update: a direction and a length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from hybrid_predict.tensors import AbstractBackend


@final
@dataclass
class UpdateState:
    """The state of a corrected update for one group of tensors, besides the averaged gradients.

    Args:
        arrays: Lists of arrays by name, one array per tensor.
        numbers: 0-dim arrays by name, equal on all ranks.
        shapes: Rows and columns of each full tensor, read as a matrix.
        stretch: Factor per tensor that depends on the shapes alone, shape (K,).
        parts: ``stretch`` of groups of members that were used before, so that no index is copied to
            the device in every step.
        block: Largest number of matrix rows that are treated together; None for all.
    """

    arrays: dict[str, list[Any]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, int], ...] = ()
    stretch: Any = None
    parts: dict[tuple[int, ...], Any] = field(default_factory=dict)
    block: int | None = None


class AbstractUpdate(ABC):
    r"""Replaces a share of the optimizer's update u by a step in a better direction.

    .. math:: \theta \leftarrow \theta - d\,\theta + (1 - \kappa)\,u + \kappa\,c, \qquad
        c = \min(\ell, B \|u\|) \, D

    with d the fraction that decoupled weight decay removes (u is the update without it), D a
    direction of unit length, and :math:`\ell` its length. Subclasses are frozen dataclasses, and
    should be final. All memory is in the averaged gradients, which the caller stores, and in the
    :class:`UpdateState`.
    """

    share: float
    r""":math:`\kappa` in [0, 1]; 0 keeps the optimizer's update."""

    bound: float | None
    """B, the largest length of a corrected update in lengths of u; None for no bound."""

    decay: float
    """Decay of the averaged gradients, in [0, 1)."""

    @abstractmethod
    def init(self, like: Sequence[Any], backend: AbstractBackend[Any]) -> UpdateState:
        """Return the state of tensors shaped like ``like`` before the first full step."""

    @abstractmethod
    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        average: Sequence[Any],
        gradients: Sequence[Any],
        cosines: Any,
        backend: AbstractBackend[Any],
    ) -> list[Any]:
        """Return the directions D: new arrays of unit Euclidean length that go downhill.

        Args:
            state: The state, changed in place.
            members: Positions of the K tensors that have a gradient.
            average: Averaged gradients of these tensors, including the newest gradient.
            gradients: The newest gradients; they must not be written to.
            cosines: Cosine of each newest gradient with its average before, shape (K,).
            backend: Kernels for these arrays.
        """

    @abstractmethod
    def lengths(self, state: UpdateState, members: Sequence[int], own: Any) -> Any:
        r"""Return the lengths :math:`\ell`, before the bound.

        Args:
            state: The state, changed in place.
            members: Positions of the K tensors that have a gradient.
            own: Euclidean lengths of the optimizer's updates of these tensors, shape (K,).

        Returns:
            Lengths of shape (K,), in units of the parameters.
        """

    def limited(self, block: int) -> str:
        """Return what else blocks of so many rows change, as a clause for the log; or nothing."""
        return ""

    def operations(
        self, like: Sequence[Any], backend: AbstractBackend[Any], block: int | None
    ) -> int:
        """Return the operations of :meth:`direction` for full tensors; 0 if not counted.

        Args:
            like: Tensors, as in :meth:`init`.
            backend: Kernels for these arrays.
            block: Largest number of matrix rows that are treated together; None for all. An update
                without blocks ignores it.
        """
        return 0
