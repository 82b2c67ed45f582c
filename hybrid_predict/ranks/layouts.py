"""Which part of a parameter each rank holds: boxes of a DTensor, or ranges of its flat entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import processes

_PLAIN = {Tensor, nn.Parameter}
_Box = tuple[slice, ...]
_NOTHING: _Box = (slice(0, 0),)  # shared, as most of many ranks hold nothing of a small matrix


@final
@dataclass(frozen=True)
class Layout:
    """Which part of a tensor each rank of a team holds.

    Args:
        shape: The shape of the whole tensor.
        team: The ranks that hold parts or copies of it.
        boxes: The part of each rank of the team; None if all of them hold all of it.
        copies: Number of the copy to which the part of each rank belongs.
        mesh: The mesh of the team; None for all ranks.
        flat: Whether boxes are parts of the flattened tensor.
    """

    shape: tuple[int, ...]
    team: tuple[int, ...]
    boxes: tuple[_Box, ...] | None = None
    copies: tuple[int, ...] = ()
    mesh: Any = None
    flat: bool = False

    @property
    def group(self) -> Any:
        """The process group of the team; None for that of all ranks."""
        if self.mesh is None or self.mesh.ndim > 1:
            return processes.group_of(self.team)
        return self.mesh.get_group()

    @property
    def shards(self) -> int:
        """Number of ranks among which each copy is divided."""
        return 1 if self.boxes is None else len(self.team) // (1 + max(self.copies))

    def part(self, whole: Tensor, member: int) -> Tensor:
        """Return the part of one rank of the team; of a contiguous tensor, it shares its memory."""
        if self.boxes is None:
            return whole
        return (whole.reshape(-1) if self.flat else whole)[self.boxes[member]]

    def part_shape(self, member: int) -> tuple[int, ...]:
        """Return the shape of :meth:`part`."""
        if self.boxes is None:
            return self.shape
        return tuple(s.stop - s.start for s in self.boxes[member])

    def gives(self, source: int, target: int) -> bool:
        """Return whether one rank of the team sends its part to another."""
        return not self.copies or self.copies[source] == self.copies[target]


@final
@dataclass(frozen=True)
class Flat:
    """A parameter of which each rank holds a range of the flat entries, with one dimension.

    Args:
        layout: The ranges.
        form: A tensor of the whole parameter's shape, type and device; it has no memory.
        has_gradient: Returns whether ranks have a gradient, the same on all of them. A rank with an
            empty range cannot see that by its own part.
    """

    layout: Layout
    form: Tensor
    has_gradient: Callable[[], bool]


_FLAT: Any = WeakTensorKeyDictionary()
"""Parameters that hold a range; nothing in them tells so."""


def register(
    parameters: Sequence[Tensor],
    shapes: Sequence[tuple[int, ...]],
    members: Sequence[int],
    has_gradient: Sequence[Callable[[], bool]],
) -> None:
    """Note that parameters hold consecutive ranges of flattened ones; every rank has to call it.

    Args:
        parameters: The parameters, with one dimension.
        shapes: The shape of each whole parameter.
        members: The ranks among which they are divided, in the order of the ranges. Other ranks
            hold copies.
        has_gradient: See :class:`Flat`.

    Raises:
        UnsupportedSetupError: On every rank, if the ranges do not make up the whole parameters.
    """
    found = processes.gather((tuple(members), [p.numel() for p in parameters]))
    numbers = {each: n for n, each in enumerate(dict.fromkeys(each for each, _ in found))}
    copies = tuple(numbers[each] for each, _ in found)
    for k, (p, shape, has) in enumerate(zip(parameters, shapes, has_gradient, strict=True)):
        boxes = [_NOTHING] * len(found)
        form = p.detach().new_empty(()).expand(shape)
        for each in numbers:
            ends = [0, *itertools.accumulate(found[rank][1][k] for rank in each)]
            if ends[-1] != form.numel():
                expected = f"ranges of {form.numel()} entries in all for the shape {shape}"
                remedy = "Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)."
                raise UnsupportedSetupError("model", expected, ends[-1], remedy)
            for rank, start, end in zip(each, ends[:-1], ends[1:], strict=True):
                boxes[rank] = (slice(start, end),) if start < end else _NOTHING
        team = tuple(range(len(found)))
        _FLAT[p] = Flat(Layout(shape, team, tuple(boxes), copies, flat=True), form, has)


def flat(tensor: Any) -> Flat | None:
    """Return what is known of a parameter that holds a range; None for other tensors."""
    known = _FLAT.data and isinstance(tensor, nn.Parameter)
    found: Flat | None = _FLAT.get(tensor) if known else None
    return found


def all_plain(tensors: Sequence[Any]) -> bool:
    """Return whether no tensor is known to be a part of another, in less time than one by one."""
    return not _FLAT.data and {*map(type, tensors)} <= _PLAIN


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, of which every rank holds a shard or a copy."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "to_local")


def layout(tensor: Any) -> Layout:
    """Return which part of a tensor each rank holds."""
    if (known := flat(tensor)) is not None:
        return known.layout
    shape = tuple(tensor.shape)
    if not is_dtensor(tensor):
        return Layout(shape, tuple(range(processes.size())))
    mesh = tensor.device_mesh
    team, boxes, copies = _parts(shape, mesh, tensor.placements)
    return Layout(shape, team, boxes, copies, mesh)


def assembled(part: Tensor, place: Layout) -> Tensor:
    """Return the whole tensor from the parts of a team, of which every rank has to call it."""
    members = range(len(place.team))
    me = place.team.index(processes.rank())
    whole = part.new_empty(place.shape)
    targets = [place.part(whole, j) if place.gives(j, me) else part.new_empty(0) for j in members]
    sent = [[part] if place.gives(me, j) else [] for j in members]
    received = processes.exchange(sent, [x.numel() for x in targets], part, place.group)
    for target, values in zip(targets, received, strict=True):
        target.copy_(values.view(target.shape))
    return whole


@lru_cache(maxsize=1024)
def _parts(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[_Box, ...], tuple[int, ...]]:
    sizes = tuple(mesh.mesh.shape)
    places = list(itertools.product(*map(range, sizes)))
    copies = [
        tuple(c for c, p in zip(place, placements, strict=True) if not p.is_shard())
        for place in places
    ]
    numbers = {copy: n for n, copy in enumerate(dict.fromkeys(copies))}
    boxes = tuple(_box(shape, sizes, place, placements) for place in places)
    return tuple(mesh.mesh.flatten().tolist()), boxes, tuple(numbers[copy] for copy in copies)


def _box(
    shape: Sequence[int], sizes: Sequence[int], place: Sequence[int], placements: Sequence[Any]
) -> _Box:
    """Return the part of one rank: along each dimension all parts but the last are equally long."""
    starts = [0] * len(shape)
    lengths = list(shape)
    for count, number, placement in zip(sizes, place, placements, strict=True):
        if placement.is_shard():
            d = placement.dim
            most = -(-lengths[d] // count)
            start = min(number * most, lengths[d])
            starts[d] += start
            lengths[d] = min(most, lengths[d] - start)
    return tuple(slice(a, a + n) for a, n in zip(starts, lengths, strict=True))
