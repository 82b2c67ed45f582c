"""Wraps torch optimizers: reports each update, by hooks on their steps, and can skip one."""

from __future__ import annotations

import math
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.optimizers.rules import (
    UpdateRule,
    check_supported,
    number,
    stated_rule,
)
from hybrid_predict.ranks import shards
from hybrid_predict.ranks.shards import DEEPSPEED, dense_gradients, of_deepspeed
from hybrid_predict.tensors.lists import upcast


@final
class Options(NamedTuple):
    """How a parameter is updated."""

    rate: float  # learning rate; one in a tensor on a device is read, which waits
    shrink: float  # fraction of the weights that decoupled decay removes in one update
    coupled: float  # multiple of the weights that coupled decay adds to sign times the gradient
    sign: float  # -1 along the gradient, as with maximize or a negative rate, else 1


@final
class OptimizerWrapper:
    """Reports the updates of torch optimizers, and skips single updates.

    They go against the gradient, unless ``maximize`` is set or the learning rate is negative.
    Weight decay may change during a run if its option is ``weight_decay``.

    Args:
        optimizers: One torch optimizer or several; they are not modified.

    Raises:
        ConfigError: If an element is not a torch optimizer.
        UnsupportedSetupError: See `rules.check_supported`.
    """

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        several = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
        if not several or not all(isinstance(o, Optimizer) for o in several):
            expected = "a torch.optim.Optimizer or a non-empty list of them"
            remedy = "If it wraps a torch optimizer, pass that one."
            if any(map(of_deepspeed, several)):
                remedy = DEEPSPEED
            elif isinstance(optimizers, nn.Module):
                remedy = "The model comes first, then its optimizer."
            raise ConfigError("optimizer", expected, optimizers, remedy)
        self.optimizers: tuple[Optimizer, ...] = tuple(several)
        self._found: dict[tuple[Any, ...], UpdateRule] = {}
        self._held_back: dict[int, tuple[list[tuple[Tensor, Tensor]], list[dict[str, Any]]]] = {}
        self._hooks: list[StepHooks] = []
        for optimizer in several:
            check_supported(optimizer)

    def parameters(self, index: int | None = None) -> list[Tensor]:
        """Return the parameters of one optimizer, or of all, without duplicates, in order.

        Those on the meta device have no values, and are left out unless all are there.
        """
        chosen = self.optimizers if index is None else (self.optimizers[index],)
        listed = [p for o in chosen for group in o.param_groups for p in group["params"]]
        unique = list(dict(zip(map(id, listed), listed, strict=True)).values())
        return [p for p in unique if not p.is_meta] or unique

    def layout(self) -> tuple[Any, ...]:
        """Return a value that changes with the trained parameters, and what is known of them."""
        content: list[Any] = []
        for group, rule in self._ruled():
            listed = group["params"]
            content += (rule.relative, rule.unknown, *map(id, listed))
            content += [p.requires_grad for p in listed]
            content += [p.is_meta for p in listed]
        return tuple(content)

    def momentum(self, index: int) -> float:
        """Return ``betas[0]`` or ``momentum`` of an optimizer, the largest of a cycle, or 0."""
        group = self.optimizers[index].param_groups[0]
        momentum = (group.get("betas") or [group.get("momentum", 0.0)])[0]
        return min(max(float(momentum), float(group.get("max_momentum", 0.0)), 0.0), 0.999)

    def numbers(self) -> dict[int, int]:
        """Return the number of the optimizer of each parameter, by ``id``."""
        return {id(p): k for k in range(len(self.optimizers)) for p in self.parameters(k)}

    def options(self) -> dict[int, Options]:
        """Return how each parameter is updated at the moment, by ``id``."""
        # A parameter that has left the optimizer inside a step stays in place.
        by_id = defaultdict[int, Options](partial(Options, 0.0, 0.0, 0.0, 1.0))
        for group, rule in self._ruled():
            rate = float(group["lr"])
            turn = -1.0 if rate < 0 else 1.0
            sign = -turn if group.get("maximize") else turn
            shrink = rule.decay * rate if rule.by_rate and rule.decay else rule.decay
            options = Options(rate, shrink, turn * rule.coupled, sign)
            by_id.update(dict.fromkeys(map(id, group["params"]), options))
        return by_id

    def rules(self) -> dict[int, UpdateRule]:
        """Return by ``id`` how each parameter is updated; see `trial.found_rule`."""
        return {id(p): rule for group, rule in self._ruled() for p in group["params"]}

    def _ruled(self) -> Iterator[tuple[dict[str, Any], UpdateRule]]:
        for k, optimizer in enumerate(self.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                stated = stated_rule(optimizer, group)
                yield group, stated or self._rule(k, place, group)

    def _rule(self, index: int, place: int, group: Mapping[str, Any]) -> UpdateRule:
        """Return the rule of a group of an optimizer that is not torch's own.

        Later only decay called ``weight_decay`` is followed; other numbers may be counters, which
        change in every step.
        """
        key = index, place, number(group, "weight_decay") != 0.0
        if key not in self._found:
            # Runs with torch's own optimizers import nothing about trials.
            from hybrid_predict.optimizers.trial import found_rule

            self._found[key] = found_rule(self.optimizers[index], group)
        return self._found[key].at(group)

    def gradients(
        self, index: int, parameters: Sequence[Tensor], options: Sequence[Options]
    ) -> list[Tensor]:
        """Return the gradients that an update follows, dense, with coupled weight decay.

        Gradient scalers leave it to fused optimizers to unscale the gradients of ``parameters``,
        which all have one.
        """
        found = dense_gradients(parameters)
        scale = getattr(self.optimizers[index], "grad_scale", None)
        for k, own in enumerate(options):
            if scale is not None:
                found[k] = upcast(found[k]) / scale.to(found[k].device)
            if own.sign < 0:
                found[k] = -found[k]
            if own.coupled:
                value = shards.local(parameters[k]).reshape(found[k].shape)
                found[k] = upcast(found[k]).add(value, alpha=own.coupled)
        return found

    def step(self, closure: Callable[[], Any] | None = None, *, rate: float | None = None) -> Any:
        """Step every optimizer, and return what the closure returns.

        Args:
            closure: Returns the loss; it is called once, in the step of the first optimizer.
            rate: Learning rate of every group in this call; None for their own. Predicted steps
                are taken before, by the groups' own rate.

        Raises:
            ConfigError: If ``rate`` is not a finite number.
        """
        known = rate is None or (isinstance(rate, (int, float)) and not isinstance(rate, bool))
        if not known or (rate is not None and not math.isfinite(rate)):
            raise ConfigError("rate", "a finite number or None", rate)
        groups = [group for o in self.optimizers for group in o.param_groups if rate is not None]
        kept = [_copied(group["lr"]) for group in groups]
        try:
            for group in groups:
                _set(group, "lr", rate)
            first, *others = self.optimizers
            loss = first.step() if closure is None else first.step(closure)
            for optimizer in others:
                optimizer.step()
        finally:
            for group, old in zip(groups, kept, strict=True):
                _set(group, "lr", old)
        return loss

    def skips(self, index: int) -> bool:
        """Return whether a gradient scaler makes a fused optimizer skip its update; waits."""
        flag = getattr(self.optimizers[index], "found_inf", None)
        return flag is not None and bool(flag)

    def hold_back(self, index: int) -> None:
        """Remove the gradients of an optimizer, so that its next update does nothing."""
        held = [(p, p.grad) for p in self.parameters(index) if p.grad is not None]
        # Some optimizers count their steps in the group.
        counts = [
            {name: _copied(value) for name, value in group.items() if name != "params"}
            for group in self.optimizers[index].param_groups
        ]
        for p, _ in held:
            p.grad = None
        self._held_back[index] = held, counts

    def restore_gradients(self, index: int) -> None:
        """Restore the gradients that were removed to hold back an update."""
        if index not in self._held_back:
            return
        held, counts = self._held_back.pop(index)
        for p, gradient in held:
            if p.grad is None:  # after an update that raised, there may be a newer one
                p.grad = gradient
        groups = self.optimizers[index].param_groups
        for group, before in zip(groups, counts, strict=False):  # some may be new
            for name, value in before.items():
                _set(group, name, value)

    def attach(self, listener: Callable[[], Any]) -> list[RemovableHandle]:
        """Call what ``listener`` returns around every update, until the handles are removed.

        Raises:
            UnsupportedSetupError: If another engine corrects the same updates.
        """
        for optimizer in self.optimizers:
            for hook in optimizer._optimizer_step_pre_hooks.values():
                known = getattr(hook, "__self__", None)
                if isinstance(known, StepHooks) and known.listener() is not None:
                    expected = "an optimizer that no other HybridEngine corrects"
                    remedy = "Give one callback to a Trainer; in a loop, detach() the other engine."
                    got = "one that another HybridEngine corrects"
                    raise UnsupportedSetupError("optimizer", expected, got, remedy)
        self._hooks = [StepHooks(o, k, listener) for k, o in enumerate(self.optimizers)]
        return [handle for hooks in self._hooks for handle in hooks.handles]

    def forget_calls(self) -> None:
        """Forget calls of ``step`` that an error has ended; called before each full step."""
        for hooks in self._hooks:
            hooks.forget_call()


def _copied(option: Any) -> Any:
    return option.clone() if isinstance(option, Tensor) else option


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    now = group.get(name)
    if isinstance(now, Tensor) and isinstance(value, (Tensor, float, int)):
        now.copy_(torch.as_tensor(value))  # a schedule or a compiled step may hold this very tensor
    else:
        group[name] = value


@final
class _Call(dict[str, Any]):
    """Keyword arguments of a call of ``step``; torch holds them until the call ends."""


@final
class StepHooks:
    """The hooks on the steps of one optimizer, until its ``handles`` are removed.

    Other hooks see, and may change, gradients before the listener and weights after it, whenever
    they were registered. The step of a subclass calls the step of its base class, which may call
    all hooks again; only the outermost call counts. A call in the handler of an error is no part of
    the call that raised it.

    ``listener`` is a weak reference. ``before_update(index, loss)`` is called when the gradients
    are final, with the loss of a closure or None, and ``after_update(index)`` at the end.
    """

    def __init__(self, optimizer: Optimizer, index: int, listener: Callable[[], Any]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._index = index
        self.listener = listener
        self._outermost: Callable[[], _Call | None] = _no_call
        self._handled = 0
        self.handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            # It runs before the optimizer's own hooks, whose order cannot change while they run.
            register_optimizer_step_pre_hook(self._reorder),
        ]

    def forget_call(self) -> None:
        """Forget a call of ``step`` that an error has ended."""
        self._outermost = _no_call

    def _reorder(self, optimizer: Optimizer, *_: Any) -> None:
        """Make the listener's hooks the last before, and the first after, an update."""
        if self._optimizer() is not optimizer:
            return
        for handle, last in zip(self.handles[:2], (True, False), strict=True):
            hooks: Any = handle.hooks_dict_ref() or {}
            if handle.id in hooks and next((reversed if last else iter)(hooks)) != handle.id:
                hooks.move_to_end(handle.id, last)

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        handled = id(sys.exc_info()[1])
        nested = self._outermost() is not None and handled == self._handled
        receiver = None if nested else self.listener()
        if receiver is None:
            return None
        call = _Call(kwargs)
        self._outermost = weakref.ref(call)
        self._handled = handled
        named = "closure" in kwargs
        closure = kwargs["closure"] if named else args[1] if len(args) > 1 else None
        if not callable(closure):
            receiver.before_update(self._index, None)
            return args, call

        # A closure runs forward and backward inside the step, so gradients are final only after it.
        def observed() -> Any:
            try:
                loss = closure()
            except BaseException:
                self.forget_call()
                raise
            receiver.before_update(self._index, loss)
            return loss

        if named:
            call["closure"] = observed
            return args, call
        return (args[0], observed, *args[2:]), call

    def _after(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs is self._outermost():
            self.forget_call()
            if (receiver := self.listener()) is not None:
                receiver.after_update(self._index)


def _no_call() -> None:
    """Return None: no call of ``step`` is running."""
