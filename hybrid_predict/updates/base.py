"""What a corrected update is: a direction and a length in place of the optimizer's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_predict.tensors import AbstractBackend


@dataclass
class UpdateState:
    """What an update remembers of one group of tensors, besides their averaged gradients.

    Args:
        arrays: Lists of arrays by name, one array per tensor.
        numbers: 0-dim arrays by name, the same on all ranks.
        shapes: Rows and columns of what every full tensor is read as.
        stretch: What follows from the shapes alone, one factor per tensor, shape (K,).
        parts: The same for those members that were asked for before, so that no list of positions
            is sent to a device in every step.
        block: Most rows of a matrix that are treated together, where a budget of operations asks
            for parts; None for all.
    """

    arrays: dict[str, list[Any]] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    shapes: tuple[tuple[int, int], ...] = ()
    stretch: Any = None
    parts: dict[tuple[int, ...], Any] = field(default_factory=dict)
    block: int | None = None


class AbstractUpdate(ABC):
    r"""A better direction for the optimizer's update u, taken by a share of it.

    .. math:: \theta \leftarrow \theta - d\,\theta + (1 - \kappa)\,u + \kappa\,c, \qquad
        c = \min(\ell, B \|u\|) \, D

    with d the fraction of decoupled weight decay, which u leaves out, D a direction of unit length
    and :math:`\ell` its length. Subclasses are final, frozen dataclasses; all memory is in the
    averaged gradients, which the caller keeps, and in the :class:`UpdateState`.
    """

    share: float
    r""":math:`\kappa` in [0, 1]; 0 leaves the optimizer's update."""

    bound: float | None
    """B, how much longer than u a corrected update is at most; None for no bound."""

    decay: float
    """Decay of the averaged gradients, in [0, 1)."""

    @abstractmethod
    def init(self, like: Sequence[Any], backend: AbstractBackend[Any]) -> UpdateState:
        """The state of tensors shaped like ``like`` before their first full step."""

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
        """The directions D, downhill and of unit Euclidean length, as new arrays.

        Args:
            state: Moves on.
            members: Positions in the group of the K tensors that a gradient has reached.
            average: Their averaged gradients, the newest included, shape of the tensors.
            gradients: The newest ones, which may not be written to.
            cosines: Of each newest gradient with the average before it, shape (K,).
            backend: Kernels for these arrays.
        """

    @abstractmethod
    def lengths(self, state: UpdateState, members: Sequence[int], own: Any) -> Any:
        r"""The lengths :math:`\ell`, before the bound.

        Args:
            state: Moves on.
            members: Positions in the group of the K tensors that a gradient has reached.
            own: Euclidean lengths of the optimizer's updates of these tensors, shape (K,).

        Returns:
            Lengths of shape (K,), in units of the parameters.
        """

    def operations(
        self, like: Sequence[Any], backend: AbstractBackend[Any], block: int | None
    ) -> int:
        """Operations of :meth:`direction`, of whole tensors; 0 where nobody counts them.

        Args:
            like: Tensors, as in :meth:`init`.
            backend: Kernels for these arrays.
            block: Most rows of a matrix that are treated together; None for all. An update that
                knows no parts takes the same operations with any.
        """
        return 0
