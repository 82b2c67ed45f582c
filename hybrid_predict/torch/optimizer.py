"""Wraps torch optimizers: shows each update, and can hold one back."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hybrid_predict.errors import ConfigError
from hybrid_predict.torch import shards
from hybrid_predict.torch.gradients import dense_gradient
from hybrid_predict.torch.lists import upcast
from hybrid_predict.torch.refusals import check_supported, inner_optimizer, refusal
from hybrid_predict.torch.scratch import find_rule
from hybrid_predict.torch.second_copies import second_copy
from hybrid_predict.torch.update_rule import UpdateRule, number, settings

_MOST_RULES = 256
"""Number of update rules to keep; an unknown optimizer may need a new one in every step."""


@final
@dataclass(frozen=True)
class Options:
    """How a parameter is updated.

    Args:
        rate: Learning rate: a number, or a tensor if reading it would wait for the device.
        shrink: Fraction of the weights that decoupled weight decay removes in one update.
        coupled: Multiple of the weights that coupled weight decay adds to ``sign`` times the
            gradient.
        sign: -1 if the optimizer goes along the gradient, as with ``maximize`` or a negative
            learning rate, else 1.
    """

    rate: float | Tensor
    shrink: float | Tensor
    coupled: float
    sign: float


class UpdateListener(Protocol):
    """Receives a call before and after each update of a wrapped optimizer."""

    def open_update(self, index: int) -> None:
        """An update begins; a closure has not been called yet."""

    def before_update(self, index: int, loss: object) -> None:
        """Called when the gradients are final; ``loss`` is the result of a closure, or None."""

    def after_update(self, index: int) -> None:
        """Called when the parameters have been updated."""


@final
class OptimizerWrapper:
    """Shows the updates of torch optimizers, and holds back single updates.

    Args:
        optimizers: One torch optimizer or several; they are not modified.

    Raises:
        ConfigError: If an element is not a torch optimizer.
        UnsupportedSetupError: If an optimizer keeps a second copy of the weights or runs the model
            several times in one step (LBFGS, Schedule-Free, Lookahead, SAM,
            ZeroRedundancyOptimizer, or detected by its state), wraps another optimizer, or has a
            parameter group without a learning rate.
    """

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        several = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
        if not several or not all(isinstance(o, Optimizer) for o in several):
            expected = "a torch.optim.Optimizer or a non-empty list of them"
            raise ConfigError("optimizer", expected, optimizers, inner_optimizer(several))
        self.optimizers: tuple[Optimizer, ...] = tuple(several)
        self._rules: dict[tuple[Any, ...], UpdateRule] = {}
        self._held_back: dict[int, tuple[list[tuple[Tensor, Tensor]], list[dict[str, Any]]]] = {}
        self._flags: dict[int, Tensor | None] = {}
        for optimizer in several:
            check_supported(optimizer)

    def parameters(self, index: int | None = None) -> list[Tensor]:
        """Return the parameters of one optimizer, or of all, without duplicates, in order."""
        chosen = self.optimizers if index is None else (self.optimizers[index],)
        unique = {id(p): p for o in chosen for group in o.param_groups for p in group["params"]}
        return list(unique.values())

    def layout(self) -> tuple[Any, ...]:
        """Return a value that changes if parameters are added, frozen or unfrozen.

        It also changes if a group's updates can be explained from now on, or no longer.
        """
        rules = (
            (rule.relative, rule.unknown)
            for k, o in enumerate(self.optimizers)
            for rule in (self.rule(k, group) for group in o.param_groups)
        )
        parameters = (
            (id(p), p.requires_grad)
            for o in self.optimizers
            for group in o.param_groups
            for p in group["params"]
        )
        return *rules, *parameters

    def places(self) -> tuple[int, ...]:
        """Return a value that changes if parameters move to other memory."""
        own = map(shards.local, self.parameters())
        return tuple(p.untyped_storage().data_ptr() for p in own)

    def momentum(self, index: int) -> float:
        """Return the momentum of an optimizer: ``betas[0]`` or ``momentum``, else 0.

        If a scheduler cycles the momentum, its largest value is returned.
        """
        group = self.optimizers[index].param_groups[0]
        found = (group.get("betas") or [group.get("momentum", 0.0)])[0]
        return min(max(float(found), float(group.get("max_momentum", 0.0)), 0.0), 0.999)

    def owners(self) -> dict[int, int]:
        """Return the number of the optimizer of each parameter, by ``id``."""
        return {id(p): k for k in range(len(self.optimizers)) for p in self.parameters(k)}

    def options(self, index: int) -> dict[int, Options]:
        """Return how an optimizer updates each of its parameters at the moment, by ``id``."""
        found = {}
        for group in self.optimizers[index].param_groups:
            rule, rate = self.rule(index, group), rate_of(group)
            turn = -1.0 if not isinstance(rate, Tensor) and rate < 0 else 1.0
            own = Options(rate, rule.fraction(rate), turn * rule.coupled, turn * rule.sign)
            found.update({id(p): own for p in group["params"]})
        return found

    def rule(self, index: int, group: Mapping[str, Any]) -> UpdateRule:
        """Return how an optimizer updates a parameter group, besides following the gradient.

        The rule is found by updating a scratch parameter, once for each combination of flags. If
        decay is proportional to an option, a schedule of that option needs no new search.

        Raises:
            UnsupportedSetupError: If the optimizer keeps a second copy of the weights.
        """
        key: tuple[Any, ...] = (index, settings(group))
        first = self._rules.get(key)
        found = first.at(group) if first else None
        if first and not found:
            key = (*key, *(number(group, name) for name, _, _ in first.basis))
            found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = find_rule(self.optimizers[index], group)
            if found.returns:
                reason = "it moves weights back, as with a second copy of the weights"
                raise refusal(self.optimizers[index], reason)
            while len(self._rules) > _MOST_RULES:
                del self._rules[next(iter(self._rules))]
        return found

    def gradient(self, index: int, p: Tensor, options: Options) -> Tensor:
        """Return the gradient that an update follows, dense, with coupled weight decay.

        Gradients for fused optimizers are unscaled here, since the gradient scaler leaves that to
        them.
        """
        gradient = dense_gradient(p)
        scale = getattr(self.optimizers[index], "grad_scale", None)
        if scale is not None:
            gradient = upcast(gradient) / scale.to(gradient.device)
        if options.sign < 0:
            gradient = -gradient
        if options.coupled:
            own = shards.local(p).reshape(gradient.shape)
            gradient = upcast(gradient).add(own, alpha=options.coupled)
        return gradient

    def step(self, closure: Callable[[], Any] | None = None, *, rate: float | None = None) -> Any:
        """Step every optimizer.

        Args:
            closure: Evaluates the model and returns the loss. It is called once, in the step of the
                first optimizer.
            rate: Learning rate of every parameter group in this call; None for their own. Predicted
                steps are taken before, by the groups' own rate.

        Returns:
            What the closure returns, or None.

        Raises:
            ConfigError: If ``rate`` is not a finite number.
        """
        number_like = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if rate is not None and not (number_like and math.isfinite(rate)):
            raise ConfigError("rate", "a finite number or None", rate)
        with self._at(rate):
            first, *others = self.optimizers
            loss = first.step() if closure is None else first.step(closure)
            for optimizer in others:
                optimizer.step()
        return loss

    @contextmanager
    def _at(self, rate: float | None) -> Iterator[None]:
        """Set the learning rate of every group, and restore it at the end."""
        groups = [group for o in self.optimizers for group in o.param_groups if rate is not None]
        rates = [group["lr"] for group in groups]
        kept = [own.clone() if isinstance(own, Tensor) else own for own in rates]
        try:
            for group in groups:
                _set_rate(group, rate)
            yield
        finally:
            for group, own in zip(groups, kept, strict=True):
                _set_rate(group, own)

    def holds_on_device(self, index: int) -> bool:
        """Whether the next update can be held back without reading the device.

        Fused optimizers can, if all parameters to be updated have a state already: an optimizer
        that is held back would leave a new state undefined.
        """
        optimizer = self.optimizers[index]
        if not type(optimizer).__module__.startswith("torch.optim"):
            return False
        updated = [p for p in self.parameters(index) if p.grad is not None]
        if optimizer.state and not all(optimizer.state.get(p) for p in updated):
            return False
        return all(group.get("fused") for group in optimizer.param_groups)

    def hold_on_device(self, index: int, good: Tensor) -> None:
        """Make a fused optimizer skip its next update if ``good`` is false."""
        optimizer: Any = self.optimizers[index]
        existing = getattr(optimizer, "found_inf", None)
        found = (~good).to(torch.float32)
        self._flags[index] = existing
        optimizer.found_inf = (
            found if existing is None else torch.maximum(found, existing.to(found))
        )

    def hold_back(self, index: int) -> None:
        """Remove the gradients of an optimizer, so that its next update does nothing."""
        optimizer = self.optimizers[index]
        held = [(p, p.grad) for p in self.parameters(index) if p.grad is not None]
        # Some optimizers count their steps in the group.
        counts = [
            {k: v.clone() if isinstance(v, Tensor) else v for k, v in g.items() if k != "params"}
            for g in optimizer.param_groups
        ]
        for p, _ in held:
            p.grad = None
        self._held_back[index] = held, counts

    def restore_gradients(self, index: int) -> bool:
        """Restore the gradients and flags that were changed to hold back an update.

        Returns:
            Whether gradients had been removed.
        """
        optimizer: Any = self.optimizers[index]
        if index in self._flags:
            existing = self._flags.pop(index)
            if existing is not None:
                optimizer.found_inf = existing
            elif hasattr(optimizer, "found_inf"):
                del optimizer.found_inf
        if index not in self._held_back:
            return False
        held, counts = self._held_back.pop(index)
        for p, gradient in held:
            if p.grad is None:  # after an update that raised, there may be a newer one
                p.grad = gradient
        for group, before in zip(optimizer.param_groups, counts, strict=True):
            group.update(before)
        return True

    def check_state(self, index: int) -> None:
        """Check after an update that the optimizer keeps no second copy of the weights.

        Raises:
            UnsupportedSetupError: If the state of a parameter has one.
        """
        optimizer = self.optimizers[index]
        for group in optimizer.param_groups:
            found = second_copy(optimizer, group)
            if found:
                reason = f"its state {found!r} holds a second copy of the weights"
                raise refusal(optimizer, reason)

    def all_options(self) -> dict[int, Options]:
        """How each parameter of any optimizer is updated, by ``id``."""
        indices = range(len(self.optimizers))
        return {key: own for k in indices for key, own in self.options(k).items()}

    def attach(self, listener: Callable[[], UpdateListener | None]) -> list[RemovableHandle]:
        """Call a listener right before and right after every update, until the handles are removed.

        Other hooks see, and may change, gradients before the listener and weights after it,
        whenever they were registered.

        Args:
            listener: Function that returns the listener, or None if it no longer exists, such as a
                weak reference.
        """
        handles = []
        for index, optimizer in enumerate(self.optimizers):
            before = optimizer.register_step_pre_hook(_pre_hook(index, listener))
            after = optimizer.register_step_post_hook(_post_hook(index, listener))
            # It runs before the optimizer's own hooks, whose order cannot change while they run.
            first = register_optimizer_step_pre_hook(_keep_innermost(optimizer, before, after))
            handles += [before, after, first]
        return handles


def rate_of(group: Mapping[str, Any]) -> float | Tensor:
    """Return a group's learning rate: a number, or a tensor if reading it would wait."""
    rate = group["lr"]
    return rate if isinstance(rate, Tensor) and rate.device.type != "cpu" else float(rate)


def _keep_innermost(
    optimizer: Optimizer, before: RemovableHandle, after: RemovableHandle
) -> Callable[..., None]:
    """Return a hook that makes one hook of an optimizer the last before, one the first after."""
    own = weakref.ref(optimizer)

    def hook(updating: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if own() is not updating:
            return
        for handle, last in ((before, True), (after, False)):
            hooks: Any = handle.hooks_dict_ref() or {}
            if handle.id in hooks and next((reversed if last else iter)(hooks)) != handle.id:
                hooks.move_to_end(handle.id, last)

    return hook


def _set_rate(group: dict[str, Any], rate: Any) -> None:
    if isinstance(group["lr"], Tensor):  # a compiled step reads this very tensor
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _pre_hook(index: int, listener: Callable[[], UpdateListener | None]) -> Callable[..., Any]:
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        receiver = None if _is_nested_step(optimizer) else listener()
        if receiver is None:
            return None
        receiver.open_update(index)
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else args[1] if len(args) > 1 else None
        if not callable(closure):
            receiver.before_update(index, None)
            return None

        # A closure runs forward and backward inside the step, so gradients are final only after it.
        def observed() -> Any:
            loss = closure()
            receiver.before_update(index, loss)
            return loss

        if named:
            return args, {**kwargs, "closure": observed}
        return (args[0], observed, *args[2:]), kwargs

    return hook


def _post_hook(index: int, listener: Callable[[], UpdateListener | None]) -> Callable[..., None]:
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        receiver = None if _is_nested_step(optimizer) else listener()
        if receiver is not None:
            receiver.after_update(index)

    return hook


_HOOKED: Any = Optimizer.profile_hook_step(Optimizer.step)
"""The function with which torch wraps every ``step``, so that it calls the hooks."""


def _is_nested_step(optimizer: Optimizer) -> bool:
    """Whether a hook was called from a step inside another step of the same optimizer.

    The step of a subclass calls the step of its base class, which calls all hooks again if the base
    class was ever instantiated itself.
    """
    found, frame = 0, sys._getframe(1)
    while frame is not None and found < 2:
        own = frame.f_code is _HOOKED.__code__
        found += own and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return found > 1
