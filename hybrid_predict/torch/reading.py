"""What a model's state dict holds while predicted steps are not verified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from hybrid_predict.torch import fsdp1, shards
from hybrid_predict.torch.deltas import Movement
from hybrid_predict.torch.layouts import flat


@final
@dataclass(eq=False)
class VerifiedReads:
    """Puts verified values into the state dicts of a model, which itself does not change.

    Every module that holds one of the tensors gets a hook, so the state dict of a part of the model
    has them too. With ``keep_vars=True`` a caller gets the parameters themselves. The state dict of
    an FSDP1 module is gathered from ranges, so these hold verified values while it is made.

    Args:
        model: The model.
        tensors: Its parameters and buffers: those that ``movement`` moved, then those copied.
        movement: The movement of the former.
        copies: Copies of the latter.
        unverified: Returns the positions in ``movement`` that no update has verified.
        withdraw: Undoes them; called before a state dict is loaded in place of verified weights.
        written: Called after ranges were written.
    """

    model: nn.Module
    tensors: Sequence[Tensor]
    movement: Movement
    copies: Sequence[Tensor]
    unverified: Callable[[], Collection[int]]
    withdraw: Callable[[], None]
    written: Callable[[], None]
    _handles: list[Any] = field(default_factory=list, init=False)
    _ranges: list[int] = field(default_factory=list, init=False)
    _kept: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False)
    _depth: int = field(default=0, init=False)

    def open(self) -> None:
        """Register the hooks."""
        self._ranges = [k for k, t in enumerate(self.tensors) if flat(t) is not None]
        for module in fsdp1.wrappers(self.model) if self._ranges else ():
            calls = OwnHook(self._enter), OwnHook(self._leave), OwnHook(self._before_load)
            self._handles += fsdp1.add_state_dict_hooks(module, *calls)
        others = {k: t for k, t in enumerate(self.tensors) if k not in self._ranges}
        positions = {id(tensor): k for k, tensor in others.items()}
        for module in self.model.modules():
            held = {**module._parameters, **module._buffers}
            places = {name: positions[id(t)] for name, t in held.items() if id(t) in positions}
            if places:
                read, load = OwnHook(partial(self._read, places)), OwnHook(self._before_load)
                self._handles.append(module.register_state_dict_post_hook(read))
                self._handles.append(module.register_load_state_dict_pre_hook(load))

    def close(self) -> None:
        """Remove the hooks, and put present values back if a state dict has failed half-way."""
        self._put_back()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _read(
        self, places: dict[str, int], module: nn.Module, state: dict[str, Any], prefix: str, _: Any
    ) -> None:
        """Put verified values in the place of copies of present ones."""
        for name, k in places.items():
            present = state.get(prefix + name)
            if not isinstance(present, Tensor) or present is getattr(module, name, None):
                continue
            if (value := self._verified(k)) is not None:
                with torch.no_grad():
                    value = shards.local(value).to(shards.local(present))
                    state[prefix + name] = shards.as_dtensor(value, present)

    def _enter(self, *_: object) -> None:
        """Put verified values into the ranges; FSDP1 modules in FSDP1 modules enter again."""
        self._depth += 1
        if self._depth > 1:
            return
        for k in self._ranges:
            if (value := self._verified(k)) is not None:
                target = shards.local(self.tensors[k]).data  # no update, so without a new version
                self._kept.append((target, target.clone()))
                target.copy_(value)
        self.written()

    def _leave(self, *_: object) -> None:
        """Put present values back."""
        self._depth -= 1
        if self._depth == 0:
            self._put_back()
            self.written()

    def _put_back(self) -> None:
        for target, present in self._kept:
            target.copy_(present)
        self._kept.clear()

    def _verified(self, k: int) -> Tensor | None:
        """Verified value of a tensor, or None for the present one."""
        unseen, moved = self.unverified(), len(self.movement.delta.names)
        if k < moved:
            return self.movement.value_without(k) if k in unseen else None
        return self.copies[k - moved] if unseen else None

    def _before_load(self, *_: object) -> None:
        if self.unverified():
            self.withdraw()


@final
class OwnHook:
    """A hook of one module, which does nothing in copies and pickles of it."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        """Call the function, with the arguments of the hook."""
        if self._call is not None:
            self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a hook without a function."""
        return OwnHook, (None,)
