"""What a group stores while an update is open, and what its updates have shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from hybrid_predict.updates.correct import Correction

if TYPE_CHECKING:
    from hybrid_predict.groups.group import Group


@final
@dataclass
class OpenUpdate:
    """Values that a group stores right before an update.

    Args:
        group: The group.
        members: Positions of the tensors that have a gradient.
        before: Weights before the update.
        usable: Which gradients are usable; None if all are.
        still: Mask of the entries whose own gradient is exactly zero, by position.
        correction: The corrected updates of the tensors whose turn it is, or None.
        corrects: Whether tensors of the group are corrected now, in this full step or another.
    """

    group: Group
    members: list[int]
    before: list[Tensor]
    usable: Tensor | None
    still: dict[int, Tensor | None]
    correction: Correction | None
    corrects: bool


@final
@dataclass
class Learned:
    """Results of updates: tags and numbers of closed windows, and slopes of verified steps."""

    windows: list[tuple[list[Any], Tensor]] = field(default_factory=list)
    slopes: list[Tensor] = field(default_factory=list)
