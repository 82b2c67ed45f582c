"""Corrects an update: finds the directions before it, and writes the corrected weights after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from hybrid_predict.errors import PredictorError
from hybrid_predict.optimizers.wrapper import Options
from hybrid_predict.ranks.shards import Counts, whole
from hybrid_predict.tensors import lists
from hybrid_predict.tensors.deltas import write
from hybrid_predict.tensors.lists import upcast
from hybrid_predict.updates import length
from hybrid_predict.updates.base import AbstractUpdate, UpdateState
from hybrid_predict.updates.masks import either

if TYPE_CHECKING:
    from hybrid_predict.ranks.owners import Owners


@final
@dataclass(frozen=True)
class Correction:
    """The corrected updates of one group of tensors in one full step."""

    update: AbstractUpdate
    period: int  # full steps from one correction of a tensor to the next
    members: list[int]  # positions of the K tensors that are corrected
    per_usual: list[float]  # inverse lengths up to which they are longer
    averages: list[Tensor]  # of their gradients, as local shards
    directions: list[Tensor]  # of their corrected updates, as local shards

    def write(
        self,
        tensors: Sequence[Tensor],
        weights: Sequence[Tensor],
        own: Sequence[Options],
        masked: Sequence[Tensor | None],
        rounded: Sequence[Tensor],
        counts: Counts,
    ) -> None:
        r"""Put the corrected updates in place of those that the optimizer has made.

        .. math:: \theta \leftarrow (1 - \kappa) \, \theta + \kappa \, \bigl( (1 - d) \, \theta_0 +
            \ell \, D \bigr)

        with the names of `AbstractUpdate`, and :math:`\theta_0` the weights before the update.

        Args:
            tensors: All tensors of the group after the update, as local shards.
            weights: Their values before the update.
            own: How the optimizer updates each.
            masked: Entries that stay as the optimizer has left them, or None.
            rounded: Rounding errors of 16-bit weights; empty if there are none.
            counts: See `ranks.shards.Counts`; of the K tensors that are corrected.
        """
        update = self.update
        values = [tensors[k] for k in self.members]
        before = [weights[k] for k in self.members]
        masks = [masked[k] for k in self.members]
        kept = [1.0 - own[k].shrink for k in self.members]
        lengths, lost = self._lengths(values, before, kept, counts)
        new = self.directions
        if {x.dtype for x in (*new, *values)} != {torch.float32}:
            pairs = zip(new, values, strict=True)
            new = [lists.cast(d, lists.widest([d, v])) for d, v in pairs]
        torch._foreach_mul_(new, lengths)
        lists.add_scaled(new, before, [update.share * rest for rest in kept])
        if update.share < 1.0:
            lists.add_scaled(new, values, [1.0 - update.share] * len(new))
        for k, (value, mask, unusable) in enumerate(zip(values, masks, lost, strict=True)):
            still = mask if unusable is None else either(mask, unusable)
            if still is not None:
                new[k] = torch.where(still, upcast(value).to(new[k].dtype), new[k])
        write(values, new, [rounded[k] for k in self.members] if rounded else [])

    def _lengths(
        self,
        values: Sequence[Tensor],
        before: Sequence[Tensor],
        kept: Sequence[float],
        counts: Counts,
    ) -> tuple[list[Any], Sequence[Tensor | None]]:
        """Return the lengths of the corrected updates times the share, and which have no length.

        Whether there are any is only tested on the CPU, where NumPy is faster for so few numbers.
        """
        xp: Any = torch
        moved = lists.differences(values, before, kept)
        norms = lists.norms(moved)
        # One buffer at a time: each is as large as all tensors together.
        along = lists.dots(moved, self.averages, overwrite=True)
        del moved
        products = torch.cat([along, lists.dots(self.directions, self.averages)])
        norms, products = whole(norms, products, counts)
        numbers: list[Any] = [norms, *products.chunk(2)]
        on_host = numbers[0].device.type == "cpu"
        if on_host:
            xp = np
            numbers = [each.numpy() for each in numbers]
        own, along, slopes = numbers
        # An optimizer that goes along its gradients as a whole is left to itself.
        usable = xp.isfinite(own) & xp.isfinite(slopes) & ~(along.sum() > 0)
        own = xp.where(usable, own, 0.0)
        known = self.per_usual
        relative = own * xp.asarray(known) if on_host else lists.scaled(own, known)
        with np.errstate(all="ignore"):  # what is not finite counts as no ratio
            found = length.lengths(xp, own, relative, along, slopes, self.update.bound, self.period)
        found = self.update.share * found
        if on_host:
            return found.tolist(), [None if x else torch.tensor(True) for x in own.tolist()]
        return list(found.unbind()), (own == 0).unbind()


def correction(
    update: AbstractUpdate,
    state: UpdateState,
    members: list[int],
    average: Sequence[Tensor],
    gradients: Sequence[Tensor],
    cosines: Tensor,
    parameters: Mapping[str, Tensor],
    per_usual: list[float],
    owners: Owners | None = None,
) -> Correction:
    """Find the directions of corrected updates, right before the optimizer updates.

    Averages, gradients and parameters are those of ``members``, the K tensors that are corrected;
    of sharded ones, they are local shards. Each direction is found by one of ``owners``, which gets
    the whole matrix if it is sharded; None if this rank is the only one. ``cosines`` are those of
    each gradient with its average before, shape (K,), and ``per_usual`` the inverse lengths up to
    which corrected updates are longer.

    Raises:
        PredictorError: If the update returns directions of the wrong form.
    """
    # Rounded as 1 - (1 - share), as in the functional form.
    shares = torch.rsub(torch.rsub(update.newest * (1.0 + cosines), 1.0), 1.0).unbind()
    names = list(parameters)

    def blend(k: int) -> Tensor:
        return lists.lerp(average[k], gradients[k], shares[k])

    def directions(own: list[int], matrices: list[Tensor]) -> list[Tensor]:
        wanted = [(each.shape, each.device) for each in matrices]
        found = update.direction(state, [members[k] for k in own], matrices)
        subject = f"{type(update).__name__}.direction"
        if not isinstance(found, (list, tuple)) or len(found) != len(own):
            raise PredictorError(subject, f"a list of {len(own)} directions", type(found).__name__)
        forms = [(x.shape, x.device) if isinstance(x, Tensor) else type(x).__name__ for x in found]
        if forms != wanted:
            rows = zip([names[k] for k in own], wanted, forms, strict=True)
            name, form, got = next(row for row in rows if row[1] != row[2])
            raise PredictorError(subject, f"a direction of shape and device {form} for {name}", got)
        return found

    if owners is None:
        mixed = lists.lerps(average, gradients, shares)
        found = directions(list(range(len(members))), mixed)
    else:
        parts: dict[int, Tensor] = {}
        for each in owners.exchanges(members, list(parameters.values()), average):
            matrices = each.whole(blend)
            own = directions(each.own, matrices) if each.own else []
            parts.update(zip(each.positions, each.parts(own), strict=True))
        found = [parts[k] for k in range(len(members))]
    return Correction(update, state.period, members, per_usual, list(average), found)
