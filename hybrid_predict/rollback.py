"""Makes a full step at a forecast point undoable: weights, optimizer state and buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hybrid_predict import distributed
from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import ParameterMapper, named_buffers, restore_unless
from hybrid_predict.profiling import FlopProfile
from hybrid_predict.window import Window


class BufferKeeper:
    """Remembers the buffers that a forward pass changes, such as batch-norm statistics.

    Which buffers those are is learnt from their version counters, so that large constant buffers
    are never copied. Norm layers update their statistics behind those counters' back, so theirs are
    always kept.

    Args:
        model: The model whose buffers are watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots = [(module, name) for module, name, _ in named_buffers(model)]
        self._versions = [self._version(k) for k in range(len(self._slots))]
        norm = nn.modules.batchnorm._NormBase
        self._changing = [k for k, (m, _) in enumerate(self._slots) if isinstance(m, norm)]
        self._kept: list[Tensor] = []

    def _buffer(self, k: int) -> Tensor:
        module, name = self._slots[k]
        buffer = module._buffers[name]
        assert buffer is not None
        return buffer

    def _version(self, k: int) -> tuple[int, int]:
        """What changes when a buffer is written in place or replaced."""
        buffer = self._buffer(k)
        return id(buffer), buffer._version

    def learn(self) -> None:
        """Add the buffers that have changed since the last call to the set that is kept."""
        for k, known in enumerate(self._versions):
            self._versions[k] = self._version(k)
            if self._versions[k] != known and k not in self._changing:
                self._changing.append(k)

    def keep(self) -> None:
        """Copy the changing buffers."""
        self._kept = [self._buffer(k).detach().clone() for k in self._changing]

    def drop(self) -> None:
        """Forget the copies."""
        self._kept = []

    def restore(self, good: Tensor | bool = False) -> None:
        """Put the kept values back where ``good`` is false, without asking the device."""
        for k, kept in zip(self._changing, self._kept, strict=False):
            restore_unless(good, self._buffer(k).detach(), kept)


class Rollback:
    """Undoes full steps whose loss or gradient was not finite, without asking the device.

    Memory: the base weights that the mapper holds anyway, one copy of the optimizer's state (for
    Adam two values per parameter), and one of the buffers that the forward pass changes.

    Args:
        model: The model.
        mapper: Its parameters and base weights.
        optimizer: Its optimizers.
    """

    def __init__(
        self, model: nn.Module, mapper: ParameterMapper, optimizer: OptimizerWrapper
    ) -> None:
        self._mapper = mapper
        self._optimizer = optimizer
        self._buffers = BufferKeeper(model)
        self._strays: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._ready: set[int] = set()

    def begin(self) -> None:
        """Remember the base weights, and forget the last full step's buffers."""
        self._mapper.snapshot()
        self._buffers.drop()

    def before_forward(self, displaced: bool) -> None:
        """Learn which buffers change and, if a forecast is applied, copy them."""
        self._ready.clear()
        self._buffers.learn()
        if displaced:
            self._buffers.keep()

    def before_update(self, index: int) -> None:
        """Copy what the optimizer is about to change and the mapper does not hold."""
        self._optimizer.snapshot(index)
        # Parameters that got no gradient before are not mapped; they are at base weights still.
        self._strays[index] = [
            (distributed.local(p), distributed.local(p).clone())
            for p in self._optimizer.parameters(index)
            if p.grad is not None and p not in self._mapper
        ]
        self._ready.add(index)

    def undo(self, good: Tensor | bool, indices: tuple[int, ...]) -> None:
        """Leave no trace of the updates of these optimizers where ``good`` is false.

        Args:
            good: A bool, or a 0-dim one: on the CPU it is read, elsewhere the selection stays on
                the device.
            indices: Which optimizers; those that :meth:`before_update` has not seen are let be.
        """
        on_device = isinstance(good, Tensor) and good.device.type != "cpu"
        decision: Tensor | bool = good if on_device else bool(good)
        if decision is True:
            return
        with torch.no_grad():
            for index in self._ready.intersection(indices):
                self._optimizer.restore(index, decision)
                self._mapper.restore(decision, self._optimizer.parameters(index))
                for parameter, kept in self._strays.get(index, ()):
                    restore_unless(decision, parameter, kept)
            self._buffers.restore(decision)

    def retreat(self, window: Window) -> None:
        """Leave no trace of a full step that cannot be finished, however far it has come.

        Its forward passes and gradients were at a forecast point that is given up, so buffers are
        put back and final gradients dropped.

        Args:
            window: The full step; without a forecast nothing of the user's is touched.
        """
        if window.applied and window.moving:
            self.undo(False, tuple(window.moving))
            self._mapper.restore(False, self._mapper.parameters)
            for parameter in self._optimizer.parameters():
                parameter.grad = None
            window.updated.clear()
        if window.applied:
            self._buffers.restore()
        self._mapper.rollback()
        self._mapper.settle()
        window.applied, window.delta, window.horizon = False, None, 0.0

    def release(self) -> None:
        """Give back the memory of the copies."""
        self._ready.clear()
        self._strays.clear()
        self._buffers.drop()
        self._optimizer.forget()
        self._mapper.forget()

    def settle(self, window: Window, loss: Tensor | float | None) -> None:
        """Leave base weights behind: the updated ones, or those before a spoiled step.

        Args:
            window: The full step, after its updates.
            loss: Its loss as the loop reports it.
        """
        late = window.loss is None and loss is not None
        window.loss = window.loss if loss is None else loss
        # What came after an update, or from another rank, may show that it has to be undone.
        late = late or len(window.updated) > 1 or distributed.size() > 1
        if window.applied and window.updated and late:
            self.undo(window.good(), tuple(sorted(window.updated)))
        if window.forecast is not None:
            # What no gradient reached was neither verified nor corrected.
            reached = window.with_gradient if window.updated else ()
            named = zip(self._mapper.names, self._mapper.parameters, strict=True)
            missed = {name: p for name, p in named if id(p) not in reached}
            self._mapper.restore(False, list(missed.values()))
            if all(name in missed for name in window.forecast.names):
                # Where every forecast ends like this, base weights must get their chance again.
                window.refused = "no update followed it"
                window.applied, window.horizon = False, 0.0
        self._mapper.settle()
        self._mapper.rounding.commit()


def let_go(mapper: ParameterMapper, handles: list[Any], profile: FlopProfile) -> None:
    """Leave a model to itself: base weights, and no hook any more."""
    profile.stop()
    mapper.rollback()
    mapper.settle()
    for handle in handles:
        handle.remove()
