"""Makes a full step at a forecast point undoable: weights, optimizer state and buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hybrid_predict.optimizer import OptimizerWrapper
from hybrid_predict.parameters import ParameterMapper, restore_unless


class BufferKeeper:
    """Remembers the buffers that a forward pass changes, such as batch-norm statistics.

    Which buffers those are is learnt from their version counters, so that large constant buffers
    are never copied. Norm layers update their statistics behind those counters' back, so theirs are
    always kept.

    Args:
        model: The model whose buffers are watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [b for b in model.buffers() if b is not None]
        self._versions = [b._version for b in self._buffers]
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        statistics = {id(b) for norm in norms for b in norm.buffers(recurse=False)}
        self._changing = [k for k, b in enumerate(self._buffers) if id(b) in statistics]
        self._kept: list[Tensor] = []

    def learn(self) -> None:
        """Add the buffers that have changed since the last call to the set that is kept."""
        for k, buffer in enumerate(self._buffers):
            if buffer._version != self._versions[k]:
                self._versions[k] = buffer._version
                if k not in self._changing:
                    self._changing.append(k)

    def keep(self) -> None:
        """Copy the changing buffers."""
        self._kept = [self._buffers[k].detach().clone() for k in self._changing]

    def restore(self, good: Tensor | bool = False) -> None:
        """Put the kept values back where ``good`` is false, without asking the device."""
        for k, kept in zip(self._changing, self._kept, strict=False):
            restore_unless(good, self._buffers[k].detach(), kept)


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

    def before_forward(self, displaced: bool) -> None:
        """Learn which buffers change and, if a forecast is applied, copy them."""
        self._buffers.learn()
        if displaced:
            self._buffers.keep()

    def before_update(self, index: int) -> None:
        """Copy what the optimizer is about to change and the mapper does not hold."""
        self._optimizer.snapshot(index)
        # Parameters that got no gradient before are not mapped; they are at base weights still.
        mapped = {id(p) for p in self._mapper.parameters}
        self._strays[index] = [
            (p.detach(), p.detach().clone())
            for p in self._optimizer.parameters(index)
            if p.grad is not None and id(p) not in mapped
        ]

    def undo(self, good: Tensor, indices: tuple[int, ...]) -> None:
        """Leave no trace of the updates of these optimizers where ``good`` is false.

        Args:
            good: 0-dim bool; on the CPU it is read, elsewhere the selection stays on the device.
            indices: Which optimizers.
        """
        decision: Tensor | bool = bool(good) if good.device.type == "cpu" else good
        if decision is True:
            return
        with torch.no_grad():
            for index in indices:
                self._optimizer.restore(index, decision)
                self._mapper.restore(decision, self._optimizer.parameters(index))
                for parameter, kept in self._strays.get(index, ()):
                    restore_unless(decision, parameter, kept)
            self._buffers.restore(decision)
