"""Tracks buffers and frozen parameters that change in a full step without an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from hybrid_predict.torch import shards
from hybrid_predict.torch.fsdp1 import named_modules
from hybrid_predict.torch.host import HostCopy

_SMALL = 4096
"""Number of entries up to which a buffer is always copied, since a comparison costs more."""

_SAMPLE = 64
"""Number of entries of a larger tensor that are compared."""

_SPARSE = {
    torch.sparse_coo: ("_values", "_indices"),
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
}
"""Methods that return the dense tensors of which a sparse one consists."""

Slot = tuple[int, str]
"""Place of a tensor: ``id`` of the module, and name in the module."""


@final
class BufferTracker:
    """Copies the buffers and frozen parameters that a full step may change, and undoes the changes.

    Small buffers are always copied. Larger buffers, and frozen parameters such as those of a
    teacher, are copied once they were seen to change. A change shows if another tensor takes their
    place, in their version counter, or in a sample of entries. The sample is needed because
    ``.data`` and the kernels of norm layers write without a new version. A tensor that appears
    during training is copied until its sample was compared.

    Attributes:
        copies: The tensors that were copied, each with its copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._steps_seen = 0
        self._changing: set[Slot] = set()
        self._new: set[Slot] = set()
        self._seen: dict[Slot, tuple[int, int]] = {}
        self._samples: dict[Slot, Tensor] = {}
        self._differs: list[tuple[Slot, HostCopy]] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._structure: list[tuple[nn.Module, dict[str, Tensor | None], set[str]]] = []
        self._bare: list[nn.Module] = []  # modules without buffers

    def _tensors(self) -> Iterator[tuple[Slot, Tensor, bool]]:
        """Yield place, tensor, and whether it is a small buffer, which is always copied."""
        known: set[int] = set()
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                # The full parameters of FSDP2 require a gradient, so they are not frozen.
                if parameter is None or parameter.requires_grad or id(parameter) in known:
                    continue
                known.add(id(parameter))
                yield (id(module), name), parameter, False
            for name, buffer in module._buffers.items():
                # Buffers made in inference mode do not change outside it.
                if buffer is None or buffer.is_inference() or id(buffer) in known:
                    continue
                known.add(id(buffer))
                if isinstance(module, nn.modules.batchnorm._NormBase):
                    self._changing.add((id(module), name))
                yield (id(module), name), buffer, buffer.numel() <= _SMALL

    def watch(self) -> None:
        """Look for changed tensors before a full step, less often the longer the run lasts."""
        self._steps_seen += 1
        if self._steps_seen & (self._steps_seen - 1):
            return
        # The device has computed these long ago, so reading them does not wait.
        self._changing |= {slot for slot, differs in self._differs if bool(differs.read())}
        self._new -= {slot for slot, _ in self._differs}
        self._differs.clear()
        for slot, tensor, small in self._tensors():
            self._compare(slot, tensor, small)

    def _compare(self, slot: Slot, tensor: Tensor, small: bool) -> None:
        if self._replaced(slot, tensor) or small:
            self._samples.pop(slot, None)
            return
        sample, before = _sample(tensor), self._samples.get(slot)
        self._samples[slot] = sample
        if before is None or before.shape != sample.shape:
            return
        differs = (before != sample).any()
        if differs.is_cuda:
            self._differs.append((slot, HostCopy(differs)))
        else:
            self._new.discard(slot)
            self._changing |= {slot} if bool(differs) else set()

    def _replaced(self, slot: Slot, tensor: Tensor) -> bool:
        """Return whether a tensor is known to change: it was replaced, or has another version."""
        version = (id(tensor), tensor._version)
        if self._seen.setdefault(slot, version) != version:
            self._changing.add(slot)
        self._seen[slot] = version
        return slot in self._changing

    def copy(self) -> None:
        """Copy the tensors that may change in the next full step."""
        self.free()
        for module in self._model.modules():
            if module._buffers:
                transient = set(_transient(module))
                self._structure.append((module, dict(module._buffers), transient))
            else:
                self._bare.append(module)
        for slot, tensor, small in self._tensors():
            if not small and slot not in self._seen:
                self._new.add(slot)
            if not small and slot in self._new:
                self._compare(slot, tensor, small)
            if small or slot in self._new or self._replaced(slot, tensor):
                self.copies.append((tensor, tensor.detach().clone()))

    def free(self) -> None:
        """Free the copies."""
        self.copies, self._structure, self._bare = [], [], []

    def state_dict(self) -> list[str]:
        """Return the names of the tensors that are known to change."""
        names = {id(module): name for name, module in named_modules(self._model)}
        return sorted(f"{names[m]}:{name}" for m, name in self._changing if m in names)

    def load_state_dict(self, state: list[str]) -> None:
        """Load a state of :meth:`state_dict`; names that this model does not have are skipped."""
        modules = dict(named_modules(self._model))
        pairs = [str(entry).rpartition(":") for entry in state]
        self._changing |= {(id(modules[m]), name) for m, _, name in pairs if m in modules}

    def undo_changes(self) -> None:
        """Put all copied tensors back."""
        with torch.no_grad():
            self._undo_structure()
            for tensor, copy in self.copies:
                for target, kept in zip(_parts(tensor), _parts(copy), strict=True):
                    target.copy_(kept)

    def _undo_structure(self) -> None:
        """Put the same buffers, with the same sizes, in the same places."""
        none: dict[str, Tensor | None] = {}
        for module, before, transient in (
            *self._structure,
            *((m, none, set()) for m in self._bare),
        ):
            if _holds_others(module, before):
                for name in [*module._buffers]:
                    del module._buffers[name]
                module._buffers.update(before)
                module._non_persistent_buffers_set = transient
        for tensor, copy in self.copies:
            if _shapes(tensor) != _shapes(copy):
                tensor.data = copy.clone()


def _transient(module: nn.Module) -> set[str]:
    """Return the names of buffers that are not saved; scripted modules have no such set."""
    return getattr(module, "_non_persistent_buffers_set", set())


def _holds_others(module: nn.Module, before: Mapping[str, Tensor | None]) -> bool:
    """Return whether a module has other buffers than before, or under other names."""
    now, then = ({n: id(b) for n, b in held.items()} for held in (module._buffers, before))
    return now != then


def _parts(tensor: Any) -> list[Tensor]:
    """Return dense tensors that store this rank's part of a tensor; none for unknown layouts."""
    shard = shards.local(tensor.detach())
    if shard.layout is torch.strided:
        return [shard]
    return [getattr(shard, name)() for name in _SPARSE.get(shard.layout, ())]


def _shapes(tensor: Tensor) -> list[torch.Size]:
    return [tensor.shape, *(part.shape for part in _parts(tensor))]


def _sample(tensor: Tensor) -> Tensor:
    parts = [] if tensor.is_meta else _parts(tensor)  # meta tensors have no entries
    flat = parts[0].reshape(-1) if parts else torch.empty(0)
    return flat[:: max(1, flat.numel() // _SAMPLE)].clone()
