"""Buffers and frozen parameters that a step changes although no optimizer does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hybrid_predict.model.deltas import copy_unless
from hybrid_predict.tensors import shards

_SMALL = 4096
"""Entries up to which a buffer is always copied: cheaper than finding out."""

_SAMPLE = 64
"""Entries by which larger ones are watched."""

Slot = tuple[int, str]
"""Where a tensor is held: ``id`` of the module, name in it."""


class BufferTracker:
    """Copies what a full step changes besides its parameters, and puts it back.

    Small buffers are always copied. Larger ones, and frozen parameters such as those of a teacher,
    are copied once they were seen to change: by another object in their place, by their version
    counter, or by a few entries that are compared now and then, since ``.data`` and the kernels of
    norm layers write behind that counter's back. Those that appear later on are copied until so
    much is known of them.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._steps_seen = 0
        self._changing: set[Slot] = set()
        self._new: set[Slot] = set()
        self._seen: dict[Slot, tuple[int, int]] = {}
        self._samples: dict[Slot, Tensor] = {}
        self._differs: dict[Slot, Tensor] = {}
        self._copies: dict[Slot, tuple[nn.Module, Tensor, Tensor]] | None = None
        self._slots: set[Slot] = set()
        self._empty: set[Slot] = set()

    def _tensors(self) -> Iterator[tuple[Slot, nn.Module, Tensor, bool]]:
        """Slot, module, tensor, and whether it is a buffer."""
        known: set[int] = set()
        for module in self._model.modules():
            norm = isinstance(module, nn.modules.batchnorm._NormBase)
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in known:
                    known.add(id(buffer))
                    if norm:
                        self._changing.add((id(module), name))
                    yield (id(module), name), module, buffer, True
            for name, p in module._parameters.items():
                # What FSDP2 gathers of a trained shard wants a gradient too, and is freed again.
                frozen = p is not None and not p.requires_grad
                if p is not None and frozen and id(p) not in known:
                    known.add(id(p))
                    yield (id(module), name), module, p, False

    def watch(self) -> None:
        """Call before every full step: notes what has changed, more and more rarely."""
        self._steps_seen += 1
        if self._steps_seen & (self._steps_seen - 1):
            return
        # Read on the host only now, when the device has long answered.
        self._changing |= {slot for slot, differs in self._differs.items() if bool(differs)}
        self._new -= self._differs.keys()
        self._differs.clear()
        for slot, _, tensor, is_buffer in self._tensors():
            self._compare(slot, tensor, is_buffer)

    def _compare(self, slot: Slot, tensor: Tensor, is_buffer: bool) -> None:
        if self._replaced(slot, tensor) or (is_buffer and tensor.numel() <= _SMALL):
            self._samples.pop(slot, None)
            return
        sample, before = _sample(tensor), self._samples.get(slot)
        self._samples[slot] = sample
        if before is None or before.shape != sample.shape:
            return
        differs = (before != sample).any()
        if differs.is_cuda:
            self._differs[slot] = differs.to("cpu", non_blocking=True)
        else:
            self._new.discard(slot)
            self._changing |= {slot} if bool(differs) else set()

    def _replaced(self, slot: Slot, tensor: Tensor) -> bool:
        """Whether a slot is known to change, by the object that it holds and that one's version."""
        version = (id(tensor), tensor._version)
        if self._seen.setdefault(slot, version) != version:
            self._changing.add(slot)
        self._seen[slot] = version
        return slot in self._changing

    def copy(self) -> None:
        """Copy what may change in the coming full step."""
        self._copies, self._slots = {}, set()
        named = ((m, name, b) for m in self._model.modules() for name, b in m._buffers.items())
        self._empty = {(id(m), name) for m, name, buffer in named if buffer is None}
        for slot, module, tensor, is_buffer in self._tensors():
            if is_buffer:
                self._slots.add(slot)
            small = is_buffer and tensor.numel() <= _SMALL
            if not small and slot not in self._seen:
                self._new.add(slot)
            if not small and slot in self._new:
                self._compare(slot, tensor, is_buffer)
            if small or slot in self._new or self._replaced(slot, tensor):
                self._copies[slot] = module, tensor, tensor.detach().clone()

    def free(self) -> None:
        """Give the copies back."""
        self._copies = None

    def state_dict(self) -> list[str]:
        """Names of what is known to change."""
        names = {id(module): name for name, module in self._model.named_modules()}
        return sorted(f"{names[m]}:{name}" for m, name in self._changing if m in names)

    def load_state_dict(self, state: list[str]) -> None:
        """Continue with what was known; names of nothing in this model are passed over."""
        modules = dict(self._model.named_modules())
        pairs = [str(entry).rpartition(":") for entry in state]
        self._changing |= {(id(modules[m]), name) for m, _, name in pairs if m in modules}

    @property
    def restructured(self) -> bool:
        """Whether a buffer has been registered, removed, replaced or resized since ``copy``."""
        if self._copies is None:
            return False
        now = {slot: t for slot, _, t, is_buffer in self._tensors() if is_buffer}
        if now.keys() != self._slots:
            return True
        pairs = ((now.get(slot, t), t, c) for slot, (_, t, c) in self._copies.items())
        return any(found is not t or _shapes(t) != _shapes(copy) for found, t, copy in pairs)

    def undo_changes(self, good: Tensor | bool = False) -> None:
        """Put everything back where ``good`` is false.

        Args:
            good: A bool, or a 0-dim bool tensor; it is read by the host only where buffers were
                registered, removed, replaced or resized.
        """
        if self._copies is None:
            return
        if isinstance(good, Tensor) and self.restructured:
            good = bool(good)
        if good is True:
            return
        with torch.no_grad():
            if good is False:
                self._undo_structure()
            for _, tensor, copy in self._copies.values():
                for target, kept in zip(_parts(tensor), _parts(copy), strict=True):
                    copy_unless(good, target, kept)

    def _undo_structure(self) -> None:
        """The same buffers in the same places, of the same sizes."""
        assert self._copies is not None
        for slot, module, _, is_buffer in list(self._tensors()):
            if slot in self._empty:
                module._buffers[slot[1]] = None
            elif is_buffer and slot not in self._slots:
                del module._buffers[slot[1]]
                module._non_persistent_buffers_set.discard(slot[1])
        for (_, name), (module, tensor, copy) in self._copies.items():
            if name in module._parameters:
                continue
            module._buffers[name] = tensor
            if _shapes(tensor) != _shapes(copy):
                tensor.data = copy.clone()


def _parts(tensor: Any) -> list[Tensor]:
    """The dense tensors that hold what this rank has of one, sparse or not, none if unknown."""
    own = shards.local(tensor.detach())
    if own.layout is torch.strided:
        return [own]
    if own.layout is torch.sparse_coo:
        return [own._values(), own._indices()]
    if own.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [own.values(), own.crow_indices(), own.col_indices()]
    if own.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [own.values(), own.ccol_indices(), own.row_indices()]
    return []


def _shapes(tensor: Tensor) -> list[torch.Size]:
    return [tensor.shape, *(part.shape for part in _parts(tensor))]


def _sample(tensor: Tensor) -> Tensor:
    parts = _parts(tensor)
    flat = parts[0].reshape(-1) if parts else torch.empty(0)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()
