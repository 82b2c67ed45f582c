"""Copies an optimizer to another parameter, so that the copy's updates leave no trace."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from types import FunctionType, ModuleType
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from hybrid_predict.interrupts import failures_suppressed
from hybrid_predict.torch.random_states import random_states, set_random_states

LARGEST = 1 << 14
"""Most entries of a tensor or array that is copied; a larger tensor is replaced by its shape."""

_SHARED = (type, ModuleType, torch.Stream, torch.Event)
"""Types of objects that no update changes."""


@final
class OptimizerCopy:
    """Makes copies of an optimizer that update another parameter and share nothing with it.

    A copy has the options of the group, and what the optimizer holds except its state. The other
    parameter replaces the first one of the group. Further parameters, and tensors with more than
    16,384 entries, have only a shape: nothing of the model's size is copied. If such a copy cannot
    update, it also gets the other groups, without parameters, and the flags in the state of the
    first parameter: an optimizer for several kinds of parameters may tell them apart by these.

    Raises:
        Exception: If the optimizer holds an object that cannot be copied, such as an open file.
    """

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        self._optimizer, self._group = optimizer, group
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        left_out = ("param_groups", "state", "step")  # a scheduler replaces ``step``
        self._attributes = {
            name: OrderedDict() if isinstance(value, OrderedDict) and "hooks" in name else value
            for name, value in vars(optimizer).items()
            if name not in left_out
        }
        for self._whole in (False, True, False):  # as at first, if no copy can update
            with failures_suppressed():
                copied, _ = self.make(p := nn.Parameter(torch.ones(2, 2)))
                self.update(copied, p, torch.ones(2, 2))
                break
        self.options: dict[str, Any] = self.make(nn.Parameter(torch.zeros(())))[1]
        del self.options["params"]

    def make(self, p: nn.Parameter) -> tuple[Any, dict[str, Any]]:
        """Return a copy that updates ``p``, and its parameter group."""
        copied, first = object.__new__(type(self._optimizer)), self._group["params"][0]
        groups = self._optimizer.param_groups if self._whole else [self._group]
        copies = [{"params": [p] if group is self._group else []} for group in groups]
        own: dict[str, Any] = next(group for group in copies if group["params"])
        known = self._optimizer.state.get(first, {}) if self._whole else {}
        flags = {name: value for name, value in known.items() if isinstance(value, (bool, str))}
        state = defaultdict(dict, {p: flags} if flags else {})
        vars(copied).update(param_groups=copies, state=state)
        file = BytesIO()
        writer = _Writer(file, self._optimizer, copied)
        writer.replace(first, p)
        for group in self._optimizer.param_groups:
            writer.replace(group, own)
        for pair in zip(groups, copies, strict=True):
            writer.replace(*pair)
        writer.dump((self._attributes, list(map(_plain, groups))))
        file.seek(0)
        attributes, options = _Reader(file, writer.objects).load()
        for group, chosen in zip(copies, options, strict=True):
            group.update(chosen)
        vars(copied).update(attributes)
        return copied, own

    def update(self, copied: Any, p: nn.Parameter, gradient: Tensor) -> None:
        """Let a copy update its parameter, without the original's hooks."""
        p.grad = gradient.clone()
        with torch.enable_grad():
            self._step(copied)


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group, with the plain implementation of updates.

    It gives the same updates, and works on every tensor.
    """
    plain = {name: False for name in ("fused", "capturable", "foreach") if name in group}
    return {name: value for name, value in group.items() if name != "params"} | plain


@final
class _Writer(pickle.Pickler):
    """Writes what an optimizer holds, but not what a copy has ``objects`` in the place of."""

    def __init__(self, file: BytesIO, optimizer: Optimizer, copied: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.objects: dict[int, Any] = {}
        self._alive: list[Any] = []
        groups = optimizer.param_groups
        self._parameters = {id(p) for group in groups for p in group["params"]}
        self.replace(optimizer, copied)
        self.replace(optimizer.state, copied.state)
        self.replace(groups, copied.param_groups)

    def replace(self, value: Any, other: Any) -> int:
        """Give the copy another object in the place of one, whose ``id`` is returned."""
        self._alive.append(value)  # else a later object could have its id
        self.objects[id(value)] = other
        return id(value)

    def persistent_id(self, value: Any) -> int | None:
        if id(value) in self.objects:
            return id(value)
        if isinstance(value, Tensor):
            return self.replace(value, self._tensor(value))
        if isinstance(value, torch.Generator):
            other = torch.Generator(value.device).set_state(value.get_state())
            return self.replace(value, other)
        if isinstance(value, defaultdict):  # state of the optimizer's own
            return self.replace(value, defaultdict(value.default_factory))
        if isinstance(value, dict) and any(id(key) in self._parameters for key in value):
            return self.replace(value, {})
        if isinstance(value, np.ndarray) and value.size > LARGEST:
            raise pickle.PicklingError("it holds a large array")
        unbound = isinstance(value, FunctionType) and value.__closure__ is None
        return self.replace(value, value) if unbound or isinstance(value, _SHARED) else None

    def _tensor(self, value: Tensor) -> Tensor:
        if id(value) in self._parameters or value.numel() > LARGEST:
            other = torch.empty(value.shape, dtype=value.dtype, device="meta")
        else:
            other = value.detach().clone()
        parameter = isinstance(value, nn.Parameter)
        return nn.Parameter(other, value.requires_grad) if parameter else other


@final
class _Reader(pickle.Unpickler):
    def __init__(self, file: BytesIO, objects: dict[int, Any]) -> None:
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, number: int) -> Any:
        return self._objects[number]


@contextmanager
def without_trace() -> Iterator[None]:
    """Hide warnings, random numbers and calls of global hooks from the user's run."""
    import warnings

    states = random_states()
    hooks = [
        getattr(torch_optimizer, f"_global_optimizer_{when}_hooks", {}) for when in ("pre", "post")
    ]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)
        set_random_states(states)
