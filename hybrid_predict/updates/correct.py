"""Corrects an update: finds the directions before it, and writes the corrected weights after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from hybrid_predict.errors import PredictorError
from hybrid_predict.torch import lists, shards
from hybrid_predict.torch.deltas import write
from hybrid_predict.torch.lists import Counts, upcast
from hybrid_predict.torch.optimizer import Options
from hybrid_predict.updates.base import AbstractUpdate, UpdateState

Mask = Tensor | bool | None
"""The entries of a tensor that the optimizer alone may move; True is all, None is none."""


@final
@dataclass(frozen=True)
class Correction:
    """The corrected updates of one group of tensors in one full step.

    Args:
        update: The corrected update.
        state: Its state.
        members: Positions of the K tensors that have a gradient.
        directions: Directions of their corrected updates, as local shards.
    """

    update: AbstractUpdate
    state: UpdateState
    members: list[int]
    directions: list[Tensor]

    def write(
        self,
        values: Sequence[Tensor],
        before: Sequence[Tensor],
        options: Sequence[Options],
        bound: float | None,
        masks: Sequence[Mask],
        carries: Sequence[Tensor],
        counts: Counts,
    ) -> None:
        r"""Put the corrected updates in place of those that the optimizer has made.

        .. math:: \theta \leftarrow (1 - \kappa) \, \theta + \kappa \, \bigl( (1 - d) \, \theta_0 +
            \min(\ell, B \|u\|) \, D \bigr)

        with :math:`\theta_0` the weights before the update, :math:`\theta` those after it, d the
        fraction that decoupled weight decay removes, and the other names of `AbstractUpdate`.

        Args:
            values: The K tensors, as local shards.
            before: Their values before the update.
            options: How the optimizer updates each.
            bound: Largest length of a corrected update in lengths of the optimizer's update,
                besides the bound of the update itself; None for no further bound.
            masks: Entries that stay as the optimizer has left them.
            carries: Rounding errors of 16-bit weights; empty if there are none.
            counts: See `torch.lists`.
        """
        update = self.update
        kept = [1.0 - option.shrink for option in options]
        lengths, lost = self._lengths(values, before, kept, bound, counts)
        pairs = zip(self.directions, values, strict=True)
        new = [lists.cast(d, torch.promote_types(d.dtype, upcast(v).dtype)) for d, v in pairs]
        torch._foreach_mul_(new, list(lists.scaled(lengths, [update.share]).unbind()))
        lists.add_scaled(new, before, [update.share * rest for rest in kept])
        if update.share < 1.0:
            lists.add_scaled(new, values, [1.0 - update.share] * len(new))
        for k, (mask, value) in enumerate(zip(masks, values, strict=True)):
            if mask is True:
                new[k] = upcast(value).to(new[k].dtype)
                continue
            if lost is not None:
                mask = lost[k] if mask is None else mask | lost[k]
            if mask is not None:
                new[k] = torch.where(mask, upcast(value).to(new[k].dtype), new[k])  # type: ignore[arg-type]
        write(list(values), new, carries)

    def _lengths(
        self,
        values: Sequence[Tensor],
        before: Sequence[Tensor],
        kept: Sequence[float | Tensor],
        bound: float | None,
        counts: Counts,
    ) -> tuple[Tensor, Sequence[Tensor] | None]:
        """Return the lengths of the corrected updates, and which have nothing to correct.

        These are updates that are zero or not finite. None if there are none, which is only tested
        on the CPU.
        """
        plain = lists.distances(values, before, kept, counts)
        sizes = lists.norms(self.directions)
        if not lists.finite_on_host(plain, sizes):
            plain = torch.where(plain.isfinite() & sizes.isfinite(), plain, 0.0)
        lengths = self.update.lengths(self.state, self.members, plain)
        bounds = [b for b in (self.update.bound, bound) if b is not None]
        if bounds:
            lengths = torch.minimum(lengths, min(bounds) * plain)
        none_lost = plain.device.type == "cpu" and all(plain.tolist())
        return lengths, None if none_lost else (plain == 0).unbind()


def correction(
    update: AbstractUpdate,
    state: UpdateState,
    members: list[int],
    average: Sequence[Tensor],
    gradients: Sequence[Tensor],
    cosines: Tensor,
    parameters: Mapping[str, Tensor],
) -> Correction:
    """Find the directions of corrected updates, right before the optimizer updates.

    Args:
        update: The corrected update.
        state: Its state, changed in place.
        members: Positions of the K tensors that have a gradient.
        average: Their averaged gradients, as local shards.
        gradients: The newest gradients, as local shards.
        cosines: Cosine of each newest gradient with its average before, shape (K,).
        parameters: The parameters by name. If one is sharded, one full matrix at a time is gathered
            from the ranks.

    Raises:
        PredictorError: If the update returns directions of the wrong form.
    """
    # Rounded as 1 - (1 - share), so that runs stay equal bit for bit to those of earlier versions.
    keep = torch.rsub(update.newest * (1.0 + cosines), 1.0)
    rows = zip(average, gradients, torch.rsub(keep, 1.0).unbind(), strict=True)
    blends: Iterator[Tensor] = (lists.lerp(m, g, share) for m, g, share in rows)
    if not any(map(shards.is_sharded, parameters.values())):
        directions = update.direction(state, members, list(blends), gradients)
        like = dict(zip(parameters, average, strict=True))
        return Correction(update, state, members, _checked(update, directions, like))
    parts, named = [], list(parameters.items())
    for position, (k, blend) in enumerate(zip(members, blends, strict=True)):
        name, parameter = named[position]
        full = shards.full_tensor(blend, parameter).contiguous()
        newest = _Gathered(gradients[position : position + 1], [parameter])
        directions = _checked(update, update.direction(state, [k], [full], newest), {name: full})
        parts.append(shards.local_shard(directions[0], parameter).clone())
    return Correction(update, state, members, parts)


@final
class _Gathered(Sequence[Tensor]):
    """Full tensors, each of which is gathered from its shards when it is read."""

    def __init__(self, parts: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        self._parts, self._tensors = parts, tensors

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, k: Any) -> Any:
        return shards.full_tensor(self._parts[k], self._tensors[k])


def _checked(update: object, directions: Any, like: Mapping[str, Tensor]) -> list[Tensor]:
    """Check the form of directions from any class, by tensors of that form by name."""
    subject = f"{type(update).__name__}.direction"
    if not isinstance(directions, (list, tuple)) or len(directions) != len(like):
        raise PredictorError(subject, f"a list of {len(like)} directions", directions)
    for (name, wanted), direction in zip(like.items(), directions, strict=True):
        lists.check_form(subject, name, direction, wanted)
    return list(directions)
