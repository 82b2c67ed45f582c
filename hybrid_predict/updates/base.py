"""The interface of a corrected update: a direction and a length. It imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass
class UpdateState:
    """The state of a corrected update for one group of tensors, besides the averaged gradients.

    Args:
        arrays: Lists of tensors by name, one per parameter; on several ranks, others than the
            owner of a parameter may have a tensor on the meta device, see `torch.owners.stays`.
        numbers: 0-dim tensors by name, equal on all ranks.
        shapes: Rows and columns of each full tensor, read as a matrix; not saved.
        constants: Tensors that depend on the shapes and on the members alone; not saved.
        block: Largest number of matrix rows that are treated together; None for all.
    """

    arrays: dict[str, list[Tensor]] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)
    shapes: tuple[tuple[int, int], ...] = ()
    constants: dict[tuple[int, ...], Tensor] = field(default_factory=dict)
    block: int | None = None


class AbstractUpdate(ABC):
    r"""Replaces a share of the optimizer's update u by a step in a better direction.

    .. math:: \theta \leftarrow \theta - d\,\theta + (1 - \kappa)\,u + \kappa\,c, \qquad
        c = \min(\ell, B \|u\|) \, D

    with d the fraction that decoupled weight decay removes (u is the update without it), D a
    direction of unit length, and :math:`\ell` its length. Subclasses are frozen dataclasses, and
    should be final. All memory is in the averaged gradients, which the caller stores, and in the
    :class:`UpdateState`.

    On several ranks each matrix has an owner: :meth:`direction` gets the matrices that its rank
    owns. So it writes to arrays of its members and to no numbers, and :meth:`lengths`, which every
    rank calls for all members, reads and writes numbers and no arrays.
    """

    share: float = 1.0
    r""":math:`\kappa` in [0, 1]; 0 keeps the optimizer's update."""

    bound: float | None = 2.0
    """B, the largest length of a corrected update in lengths of u; None for no bound."""

    decay: float = 0.95
    """Decay of the averaged gradients, in [0, 1)."""

    newest: float = 0.0
    r""":math:`\nu`, the share of the newest gradient if it is orthogonal to the average."""

    reads_gradients: ClassVar[bool] = True
    """Whether :meth:`direction` reads gradients; sharded ones take as much traffic as averages."""

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return the state before the first full step; an empty one by default.

        Args:
            like: The parameters, which may be sharded; their shapes are those of full tensors. On
                several ranks it is called for one parameter at a time.
            history: Type in which averages are stored, ``float32`` or ``bfloat16``.
        """
        return UpdateState()

    @abstractmethod
    def direction(
        self,
        state: UpdateState,
        members: Sequence[int],
        matrices: list[Tensor],
        gradients: Sequence[Tensor],
    ) -> list[Tensor]:
        r"""Return the directions D: new tensors of unit Euclidean length that go downhill.

        Args:
            state: The state, changed in place.
            members: Positions of the K tensors that have a gradient and that this rank owns.
            matrices: Averaged gradients :math:`(1 - \nu_t) m + \nu_t g` of these tensors with
                :math:`\nu_t = \nu (1 + \cos(g, m))`, as full tensors of at least 32 bits; may be
                overwritten.
            gradients: The newest gradients g, as full tensors; not to be written to. Empty unless
                :attr:`reads_gradients`.
        """

    def lengths(self, state: UpdateState, members: Sequence[int], own: Tensor) -> Tensor:
        r"""Return the lengths :math:`\ell` before the bound; those of the optimizer by default.

        Args:
            state: The state, changed in place.
            members: Positions of the K tensors that have a gradient.
            own: Euclidean lengths of the optimizer's updates of these tensors, shape (K,).

        Returns:
            Lengths of shape (K,), in units of the parameters.
        """
        return own

    def limited(self, block: int) -> str:
        """Return a clause for the log about further effects of blocks of this size; or ""."""
        return ""

    def operations(self, like: Sequence[Tensor], block: int | None) -> int:
        """Return the operations of :meth:`direction` for full tensors; 0 if not counted.

        Args:
            like: The parameters, as in :meth:`init`.
            block: Largest number of matrix rows that are treated together; None for all. An update
                without blocks ignores it.
        """
        return 0
