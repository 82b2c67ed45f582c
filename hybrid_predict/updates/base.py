"""The interface of a corrected update: a direction and a length. It imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from torch import Tensor

AVERAGE = 0.95  # decay of averaged gradients where no update asks for another
ROUNDING = 2.0**-22  # largest relative error of weights that only decay has moved
COASTING = 0.5  # share of the usual movement below which an entry without a gradient is frozen


def moving_decay(update: AbstractUpdate | None, period: int | None, momentum: float) -> float:
    """Return the decay of the average that moves weights, in [0, 1).

    This is that of the update, or the momentum of the optimizer where that moves them too.
    """
    if update is None or period is None:
        return momentum
    alone = update.share >= 1.0 and period == 1
    return update.decay if alone else max(update.decay, momentum)


@final
@dataclass
class UpdateState:
    """The state of a corrected update for one group of tensors, besides the averaged gradients.

    Args:
        arrays: Lists of tensors by name, one per parameter; on several ranks, others than the
            owner of a parameter have a tensor on the meta device.
        period: Full steps from one correction of a tensor to the next; set before each.
    """

    arrays: dict[str, list[Tensor]] = field(default_factory=dict)
    period: int = 1


class AbstractUpdate(ABC):
    r"""Replaces a share of the optimizer's update u by a step in a better direction.

    .. math::
        \theta \leftarrow \theta - d\,\theta + (1 - \kappa)\,u + \kappa\,\ell \, D, \qquad
        \ell = P^{.66} \, \|u\| \, \max \Bigl( 1, \min \Bigl(
            \frac{\langle m, u \rangle}{\|u\| \, \langle m, D \rangle}, \,
            \frac{\ell_0}{\|u\|}, \, B \Bigr) \Bigr)

    with d the fraction that decoupled weight decay removes (u is the update without it), D a
    direction of unit length, m the averaged gradient, and P the number of full steps from one
    correction of a tensor to the next. So a corrected update goes downhill along the averaged
    gradient as steeply as the update that it replaces, unless it would have to be longer than B
    times that update, or than the usual length :math:`\ell_0` of `updates.length`.

    Subclasses are frozen dataclasses, and should be final. All memory is in the averaged gradients,
    which the caller stores, and in the :class:`UpdateState`. On several ranks each matrix has an
    owner: :meth:`direction` gets the matrices that its rank owns, and writes to their arrays.
    """

    share: float = 1.0
    r""":math:`\kappa` in [0, 1]; 0 keeps the optimizer's update."""

    bound: float = 6.0
    """B, at least 1."""

    decay: float = 0.95
    """Decay of the averaged gradients, in [0, 1)."""

    newest: float = 0.0
    r""":math:`\nu`, the share of the newest gradient if it is orthogonal to the average."""

    def init(self, like: Sequence[Tensor], history: str) -> UpdateState:
        """Return the state before the first full step; an empty one by default.

        Args:
            like: Tensors in the form of the full parameters; on several ranks one at a time.
            history: Type in which averages are stored, ``float32`` or ``bfloat16``.
        """
        return UpdateState()

    @abstractmethod
    def direction(
        self, state: UpdateState, members: Sequence[int], matrices: list[Tensor]
    ) -> list[Tensor]:
        r"""Return the directions D: new tensors of unit Euclidean length that go downhill.

        Args:
            state: The state, changed in place.
            members: Positions of the K tensors that have a gradient, whose turn it is, and that
                this rank owns.
            matrices: Averaged gradients :math:`(1 - \nu_t) m + \nu_t g` of these tensors with
                :math:`\nu_t = \nu (1 + \cos(g, m))`, as full tensors of at least 32 bits; may be
                overwritten.
        """

    def operations(self, like: Sequence[Tensor], period: int) -> int:
        """Return the operations of :meth:`direction` for full tensors; 0 if not counted."""
        return 0
