"""One or several torch optimizers, unchanged, with their updates made visible and undoable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hybrid_predict.config import POLICIES
from hybrid_predict.distributed import local
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.gradients import GradientProbe
from hybrid_predict.parameters import restore_unless

_REFUSED = {
    "LBFGS": "it runs the model several times inside one step",
    "ScheduleFree": "it keeps a second set of weights that a forecast would contradict",
    "Lookahead": "it keeps a second set of weights that a forecast would contradict",
    "ZeroRedundancyOptimizer": "it keeps its state where an undone step cannot reach it",
    "SAM": "it moves the weights itself between two backward passes",
}

_RELATIVE = ("Adafactor", "Lamb", "LAMB", "LARS", "Lars")
"""Optimizers whose updates are as long as a share of the weights."""

_DECOUPLED = ("AdamW", "Muon", "Adafactor")
"""Optimizers whose weight decay leaves the gradient alone, unless their groups say otherwise."""


class UpdateListener(Protocol):
    """What an :class:`OptimizerWrapper` calls around every update of its optimizers."""

    def before_update(self, index: int, loss: object) -> None:
        """The gradients are final; ``loss`` is what the step's closure returned, if it had one."""

    def after_update(self, index: int) -> None:
        """The parameters have been updated."""


class OptimizerWrapper:
    """Sees every update as it is applied, reconciles state with forecasts, and undoes updates.

    Args:
        optimizers: One torch optimizer or several; they stay the user's own and are not modified.

    Raises:
        ConfigError: If there is no torch optimizer among them.
        UnsupportedSetupError: If an optimizer cannot work with forecasts (LBFGS, Schedule-Free,
            Lookahead, SAM, ZeroRedundancyOptimizer).
    """

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer]) -> None:
        several = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
        if not several or not all(isinstance(o, Optimizer) for o in several):
            raise ConfigError(
                "optimizer", "a torch.optim.Optimizer or a non-empty list of them", optimizers
            )
        for optimizer in several:
            for refused, reason in _REFUSED.items():
                if any(refused in cls.__name__ for cls in type(optimizer).__mro__):
                    raise UnsupportedSetupError(
                        "optimizer",
                        "an optimizer with one set of weights and one pass per step",
                        type(optimizer).__name__,
                        f"Forecasts cannot work with it because {reason}; "
                        "use SGD, Adam, AdamW or another plain optimizer.",
                    )
        self.optimizers: tuple[Optimizer, ...] = tuple(several)
        self._listed: dict[int | None, tuple[tuple[Any, ...], tuple[Tensor, ...]]] = {}
        self._kept: dict[int, _StateCopy] = {}
        self._late: dict[int, tuple[Tensor, Tensor]] = {}

    def parameters(self, index: int | None = None) -> Sequence[Tensor]:
        """The parameters of one optimizer, or of all, each once, in the order of the groups."""
        chosen = self.optimizers if index is None else (self.optimizers[index],)
        groups = [group["params"] for o in chosen for group in o.param_groups]
        layout = tuple((id(members), len(members)) for members in groups)
        if self._listed.get(index, ((), ()))[0] != layout:
            unique = {id(p): p for members in groups for p in members}
            self._listed[index] = (layout, tuple(unique.values()))
        return self._listed[index][1]

    def owners(self) -> dict[int, int]:
        """The number of the optimizer that each parameter belongs to, by ``id``."""
        return {id(p): k for k in range(len(self.optimizers)) for p in self.parameters(k)}

    def is_relative(self, index: int) -> bool:
        """Whether an optimizer's updates grow with the weights.

        A forecast as long as such updates grows with what it has moved before (decision 12).
        """
        names = [cls.__name__ for cls in type(self.optimizers[index]).__mro__]
        return any(name in own for own in names for name in _RELATIVE)

    def descent(self, index: int) -> dict[int, tuple[float, float, float]]:
        """What an optimizer goes down for each of its parameters, by ``id``.

        Returns:
            The fraction that an update takes off the weights themselves, the multiple of them that
            it adds to the gradient (weight decay is one or the other), and the gradient's sign, -1
            where the optimizer maximises.
        """
        optimizer = self.optimizers[index]
        found = {}
        for group in optimizer.param_groups:
            decay = float(group.get("weight_decay", 0.0))
            apart = group.get("decoupled_weight_decay", type(optimizer).__name__ in _DECOUPLED)
            both = (decay * float(group["lr"]), 0.0) if apart else (0.0, decay)
            found.update({id(p): (*both, _sign(group)) for p in group["params"]})
        return found

    def learning_rates(self) -> list[float]:
        """The learning rate of every group, in order."""
        return [float(g["lr"]) for o in self.optimizers for g in o.param_groups]

    def probe(self, index: int) -> GradientProbe:
        """Measures the gradients of one optimizer as its update will apply them.

        A gradient scaler leaves the unscaling to fused optimizers; the measurement does it too.
        """
        scale = getattr(self.optimizers[index], "grad_scale", None)
        sign = _sign(self.optimizers[index].param_groups[0])
        return GradientProbe(self.parameters(index), scale, sign)

    def attach(self, listener: Callable[[], UpdateListener | None]) -> list[RemovableHandle]:
        """Call the listener around every update, until the returned handles are removed.

        Args:
            listener: Gives the listener, or None once it no longer exists; a weak reference does.
        """
        handles = []
        for index, optimizer in enumerate(self.optimizers):
            handles.append(optimizer.register_step_pre_hook(_pre_hook(index, listener)))
            handles.append(optimizer.register_step_post_hook(_post_hook(index, listener)))
        return handles

    def snapshot(self, index: int | None = None) -> None:
        """Remember the state of one optimizer, or of all, for :meth:`restore`.

        Costs one copy of the state: for Adam two values per parameter.
        """
        for k in range(len(self.optimizers)) if index is None else (index,):
            self._kept.setdefault(k, _StateCopy()).take(
                self.optimizers[k].state, self.parameters(k)
            )

    def restore(self, index: int | None = None, good: Tensor | bool = False) -> None:
        """Put back the remembered state where ``good`` is false.

        With a boolean the result is bit for bit what :meth:`snapshot` saw. With a device tensor,
        state that lives on the host (the step counts of non-fused optimizers) cannot follow a
        decision the host has not seen; :meth:`take_late_counts` tells what to correct then.
        """
        for k in self._kept if index is None else (index,):
            state = self.optimizers[k].state
            for p, kept in self._kept[k].entries() if k in self._kept else ():
                if isinstance(good, Tensor):
                    self._restore_on_device(state.get(p, {}), kept, good)
                elif not good:
                    _restore_exactly(state, p, kept)

    def forget(self) -> None:
        """Drop what :meth:`snapshot` remembers."""
        self._kept.clear()

    def take_late_counts(self) -> list[tuple[Tensor, Tensor]]:
        """Host-side counts that :meth:`restore` could not decide on, with what to subtract."""
        late, self._late = self._late, {}
        return list(late.values())

    def _restore_on_device(
        self, current: dict[str, Any], kept: Mapping[str, Any], good: Tensor
    ) -> None:
        for name, entry in current.items():
            if not isinstance(entry, Tensor):
                continue
            value = local(entry)
            before = kept[name] if name in kept else torch.zeros_like(value)
            if value.device == good.device:
                restore_unless(good, value, before)
            elif value.dim() == 0:
                self._late[id(entry)] = (value, value - before)

    def reconcile(
        self, displacement: Mapping[int, Tensor], horizon: float, policy: str, index: int = 0
    ) -> None:
        r"""Bring the optimizer's state to where it would be after a forecast of several updates.

        ``keep`` leaves it alone. ``advance`` adds the horizon h to the step counts. ``implied``
        does that too and sets the first moment to the one whose steady update is the forecast's:

        .. math:: m = -\frac{\hat\Delta}{h\,\eta} (\sqrt{\hat v} + \epsilon)(1 - \beta_1^{t+h})

        for Adam-like state, and :math:`-\hat\Delta / (h\eta)` for a momentum buffer.

        Args:
            displacement: The forecast by ``id`` of the parameter, parameter units.
            horizon: h, in optimizer updates.
            policy: One of ``keep``, ``advance``, ``implied``.
            index: Which optimizer.

        Raises:
            ConfigError: If the policy is unknown.
        """
        if policy not in POLICIES:
            raise ConfigError("policy", f"one of {', '.join(POLICIES)}", policy)
        if policy == "keep" or horizon <= 0:
            return
        optimizer = self.optimizers[index]
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p)
                if not state or id(p) not in displacement:
                    continue
                if isinstance(state.get("step"), Tensor):
                    state["step"] += horizon
                elif "step" in state:
                    state["step"] += round(horizon)
                if policy == "implied" and float(group["lr"]) > 0:
                    velocity = displacement[id(p)] / (-horizon * float(group["lr"]))
                    _imply_moment(state, group, velocity)


def _sign(group: Mapping[str, Any]) -> float:
    return -1.0 if group.get("maximize") else 1.0


def _imply_moment(state: dict[str, Any], group: dict[str, Any], velocity: Tensor) -> None:
    if "exp_avg" in state and "exp_avg_sq" in state:
        beta1, beta2 = (float(b) for b in group["betas"])
        step = float(state["step"])
        scale = (local(state["exp_avg_sq"]) / (1.0 - beta2**step)).sqrt_().add_(group["eps"])
        local(state["exp_avg"]).copy_(velocity * scale * (1.0 - beta1**step))
    elif isinstance(state.get("momentum_buffer"), Tensor):
        local(state["momentum_buffer"]).copy_(velocity)


class _StateCopy:
    """A copy of an optimizer's state that reuses its memory while the state's layout stays."""

    def __init__(self) -> None:
        self._layout: list[tuple[Tensor, dict[str, Any]]] = []
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []
        self._copies: dict[int, Tensor] = {}

    def take(self, state: Mapping[Any, Any], parameters: Sequence[Tensor]) -> None:
        """Copy the state of these parameters."""
        if not self._unchanged(state, parameters):
            self._arrange(state, parameters)
        for copies, live in self._pairs:
            torch._foreach_copy_(copies, live)

    def entries(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Each parameter with its state as it was."""
        for p, entry in self._layout:
            yield p, {name: self._copies.get(id(v), v) for name, v in entry.items()}

    def _unchanged(self, state: Mapping[Any, Any], parameters: Sequence[Tensor]) -> bool:
        """Whether the same tensors are there, and nothing else that would need a new copy."""
        if len(self._layout) != len(parameters):
            return False
        for (p, entry), q in zip(self._layout, parameters, strict=True):
            now = state.get(q) or {}
            if p is not q or now.keys() != entry.keys():
                return False
            for name, value in entry.items():
                if now[name] is not value:
                    return False
        return True

    def _arrange(self, state: Mapping[Any, Any], parameters: Sequence[Tensor]) -> None:
        self._layout = [(p, dict(state.get(p, {}))) for p in parameters]
        entries = [v for _, e in self._layout for v in e.values() if isinstance(v, Tensor)]
        live = {id(v): local(v) for v in entries}
        self._copies = {key: torch.empty_like(value) for key, value in live.items()}
        self._pairs = []
        for device in {v.device for v in live.values()}:
            keys = [key for key, value in live.items() if value.device == device]
            self._pairs.append(([self._copies[k] for k in keys], [live[k] for k in keys]))


def _restore_exactly(state: Any, p: Tensor, kept: Mapping[str, Any]) -> None:
    if not kept:
        state.pop(p, None)
        return
    current = state[p]
    for name in [n for n in current if n not in kept]:
        del current[name]
    for name, value in kept.items():
        if isinstance(value, Tensor) and isinstance(current.get(name), Tensor):
            local(current[name]).copy_(value)
        else:
            current[name] = value.clone() if isinstance(value, Tensor) else value


def _pre_hook(index: int, listener: Callable[[], UpdateListener | None]) -> Callable[..., Any]:
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        heard = listener()
        if heard is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            heard.before_update(index, None)
            return None

        # A closure runs forward and backward inside the step, so gradients are final only after it.
        def observed() -> Any:
            loss = closure()
            heard.before_update(index, loss)
            return loss

        return (args[0],), {**kwargs, "closure": observed}

    return hook


def _post_hook(index: int, listener: Callable[[], UpdateListener | None]) -> Callable[..., None]:
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        heard = listener()
        if heard is not None:
            heard.after_update(index)

    return hook
