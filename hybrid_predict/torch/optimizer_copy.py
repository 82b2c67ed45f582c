"""Copies an optimizer to a scratch parameter, so that its updates leave no trace."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from hybrid_predict.torch.random_states import random_states, set_random_states

LARGEST = 1 << 14
"""Most entries of a tensor or array that is copied; a larger tensor is replaced by its shape."""

_SHARED = (type, ModuleType, torch.Stream, torch.Event)
"""Types of objects that no update changes."""


@final
class _Target(NamedTuple):
    """What stands in the place of the original's own objects in one copy."""

    optimizer: Any
    p: nn.Parameter
    group: dict[str, Any]


_Part = Callable[[_Target], Any]


@final
class OptimizerCopy:
    """Makes copies of an optimizer that update a scratch parameter and share nothing with it.

    A copy has everything that the optimizer holds, and none of its state. The scratch parameter
    stands for the first parameter of the group. Other parameters, and tensors with more than 16,384
    entries, have only a shape: nothing of the model's size is copied.

    Args:
        optimizer: The optimizer.
        group: The parameter group whose options the copies have.

    Raises:
        Exception: If the optimizer holds an object that cannot be copied, such as an open file.
    """

    def __init__(self, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        self._optimizer = optimizer
        self._step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
        # The plain implementation gives the same updates, and works on every tensor.
        plain = {name: False for name in ("fused", "capturable", "foreach") if name in group}
        options = {k: v for k, v in group.items() if k != "params"} | plain
        self._file = BytesIO()
        writer = _Writer(self._file, optimizer, group)
        writer.dump((_attributes(optimizer), options))
        self._parts = writer.parts
        self.options: dict[str, Any] = self.make(nn.Parameter(torch.zeros(()))).param_groups[0]
        del self.options["params"]

    def make(self, p: nn.Parameter) -> Any:
        """Return a copy that updates ``p``."""
        copied, own = object.__new__(type(self._optimizer)), {"params": [p]}
        self._file.seek(0)
        attributes, options = _Reader(self._file, self._parts, _Target(copied, p, own)).load()
        own.update(options)
        vars(copied).update(attributes, param_groups=[own], state=defaultdict(dict))
        return copied

    def update(self, copied: Any, p: nn.Parameter, gradient: Tensor) -> None:
        """Let a copy update its parameter, without the original's hooks."""
        p.grad = gradient.clone()
        with torch.enable_grad():
            self._step(copied)


def _attributes(optimizer: Optimizer) -> dict[str, Any]:
    """What an optimizer holds beside groups and state; hooks are left out."""
    left_out = ("param_groups", "state", "step")  # a scheduler replaces ``step``
    return {
        name: OrderedDict() if isinstance(value, OrderedDict) and "hooks" in name else value
        for name, value in vars(optimizer).items()
        if name not in left_out
    }


@final
class _Writer(pickle.Pickler):
    """Writes objects, but for those that a copy has to make anew or can share.

    Args:
        file: Where to write.
        optimizer: The optimizer.
        group: The group whose first parameter is the scratch parameter.

    Attributes:
        parts: What makes these objects, in the order of their numbers in the file.
    """

    def __init__(self, file: BytesIO, optimizer: Optimizer, group: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        groups = optimizer.param_groups
        self._parameters = {id(p) for each in groups for p in each["params"]}
        self._own: dict[int, _Part] = {
            id(optimizer): lambda target: target.optimizer,
            id(optimizer.state): lambda target: target.optimizer.state,
            id(groups): lambda target: target.optimizer.param_groups,
            **{id(each): lambda target: target.group for each in groups},
            **{id(p): lambda target: target.p for p in group["params"][:1]},
        }
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self.parts: list[_Part] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of an object that is not written, or None."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        part = self._own.get(id(value)) or self._part(value)
        if part is None:
            return None
        self._numbers[id(value)] = len(self.parts)
        self._alive.append(value)  # else a later object could have its id
        self.parts.append(part)
        return len(self.parts) - 1

    def _part(self, value: Any) -> _Part | None:
        if isinstance(value, Tensor):
            return partial(_tensor, value, id(value) in self._parameters)
        if isinstance(value, torch.Generator):
            return partial(_generator, value)
        if isinstance(value, defaultdict):  # state of the optimizer's own
            return partial(_empty, value.default_factory)
        if isinstance(value, dict) and any(id(key) in self._parameters for key in value):
            return partial(_empty, None)
        if isinstance(value, np.ndarray) and value.size > LARGEST:
            raise pickle.PicklingError("it holds a large array")
        unbound = isinstance(value, FunctionType) and value.__closure__ is None
        return partial(_shared, value) if unbound or isinstance(value, _SHARED) else None


@final
class _Reader(pickle.Unpickler):
    """Reads what a :class:`_Writer` wrote, with new objects for its parts."""

    def __init__(self, file: BytesIO, parts: list[_Part], target: _Target) -> None:
        super().__init__(file)
        self._parts, self._target = parts, target
        self._made: dict[int, Any] = {}

    def persistent_load(self, number: int) -> Any:
        """Return the object in place of the one with a number, the same each time."""
        if number not in self._made:
            self._made[number] = self._parts[number](self._target)
        return self._made[number]


def _tensor(value: Tensor, parameter: bool, _: _Target) -> Tensor:
    if parameter or value.numel() > LARGEST:
        found = torch.empty(value.shape, dtype=value.dtype, device="meta")
    else:
        found = value.detach().clone()
    if isinstance(value, nn.Parameter):
        return nn.Parameter(found, value.requires_grad)
    return found


def _generator(value: torch.Generator, _: _Target) -> torch.Generator:
    return torch.Generator(value.device).set_state(value.get_state())


def _empty(factory: Any, _: _Target) -> dict[Any, Any]:
    return {} if factory is None else defaultdict(factory)


def _shared(value: Any, _: _Target) -> Any:
    return value


@contextmanager
def without_trace() -> Iterator[None]:
    """Keep warnings, random numbers and calls of global hooks from the user's run."""
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
