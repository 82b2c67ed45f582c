"""Hooks of a module: before its state dict is read or loaded, and hooks that copies do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final


def watch_state_dict(
    model: Any, read: Callable[[], object], load: Callable[[], object]
) -> list[Any]:
    """Call functions before the state dict of a model is read, and loaded; return their handles.

    They are called before other hooks, as FSDP1 gathers parameters in one.
    """
    reads = model.register_state_dict_pre_hook(OwnHook(lambda *_: read()))
    loads = model.register_load_state_dict_pre_hook(OwnHook(lambda *_: load()))
    model._state_dict_pre_hooks.move_to_end(reads.id, last=False)
    model._load_state_dict_pre_hooks.move_to_end(loads.id, last=False)
    return [reads, loads]


@final
class OwnHook:
    """A hook of one module, which does nothing in copies and pickles of it."""

    def __init__(self, call: Callable[..., object] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        """Call the function, with the arguments of the hook."""
        if self._call is not None:
            self._call(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a hook without a function."""
        return OwnHook, (None,)
