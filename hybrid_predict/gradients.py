"""What the gradients say, measured on the device and read a fixed number of steps later."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.backends import TorchBackend, is_half


@dataclass(frozen=True)
class GradientInfo:
    """One full step's loss and gradients as plain numbers.

    Args:
        loss: Training loss at the point where the gradient was taken; nan if unknown.
        total_norm: Euclidean norm over all parameters, as applied (after clipping).
        finite: Whether loss, gradients and forecast were finite, and within the step's limits.
        residual: Length of the residual relative to the forecast's; nan if none was scored.
        alignments: Alignment per forecast parameter; empty if not measured at this step.
        novelty: Share of the forecast's squared length that the optimizer's own update does not
            have; nan if not measured.
    """

    loss: float
    total_norm: float
    finite: bool
    residual: float
    alignments: tuple[float, ...] = ()
    novelty: float = math.nan

    @property
    def alignment(self) -> float | None:
        """Mean alignment over the forecast parameters, None if not measured."""
        return sum(self.alignments) / len(self.alignments) if self.alignments else None


class GradientProbe:
    """Measures the gradients of one optimizer in a few fused calls, without waiting for the device.

    Where several ranks train together, it measures this rank's part for ``distributed.combine``.

    Args:
        parameters: The optimizer's parameters; those without gradient are passed over.
        scale: What a gradient scaler has multiplied the gradients with, 0-dim; None if nothing.
        sign: -1 if the optimizer goes up its gradients.
    """

    def __init__(
        self, parameters: Sequence[Tensor], scale: Tensor | None = None, sign: float = 1.0
    ) -> None:
        self._scale = 1.0 if scale is None else scale
        self._sign = sign
        held = [p for p in parameters if p.grad is not None]
        grads = [dense_gradient(p) for p in held]
        # Half precision must not bound the norm: 16-bit floats end at 65504.
        half = any(map(is_half, grads))
        norms = torch._foreach_norm(grads, 2, torch.float32 if half else None) if grads else []
        self._held = held
        columns = zip(held, grads, norms, strict=True)
        self._measured = {id(p): (grad, norm) for p, grad, norm in columns}

    @property
    def reached(self) -> Set[int]:
        """The ``id`` of every parameter that a gradient has reached."""
        return self._measured.keys()

    def __len__(self) -> int:
        return len(self._measured)

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._measured

    def total_norm(self) -> Tensor:
        """Euclidean norm of all gradients, a 0-dim tensor; not finite if any entry is not."""
        norms = [norm for _, norm in self._measured.values()]
        if roots := distributed.roots(self._held):
            norms = list(torch._foreach_mul(norms, roots))
        return (torch.linalg.vector_norm(torch.stack(norms)) / self._scale).float()

    def products(
        self, parameters: Sequence[Tensor], directions: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Norms |g| and |d| and products :math:`\langle g, d\rangle`, each of shape (K,).

        Elements that several ranks hold count as often; the alignment
        :math:`-\langle g, d\rangle / (|g| |d|)` is the same.

        Args:
            parameters: K > 0 forecast parameters that have gradients.
            directions: Their forecasts' directions d, shaped like them.
        """
        backend = TorchBackend()
        grads, columns = zip(*(self._measured[id(p)] for p in parameters), strict=True)
        shaped = [g.reshape(d.shape) for g, d in zip(grads, directions, strict=True)]
        norms = torch.stack(columns).float()
        dots = backend.dots(shaped, directions)
        return norms / self._scale, backend.norms(directions), self._sign * dots / self._scale


def dense_gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a parameter's gradient, dense, without autograd history."""
    gradient = distributed.local_gradient(parameter)
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient


class LateReader:
    """A queue between device and host: what is pushed is read ``lag`` pushes later.

    Args:
        lag: How many pushes later a measurement is read; 0 reads it at once, which on an
            accelerator waits for the device.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._queue: deque[tuple[Any, Tensor, Any]] = deque()

    def push(self, tag: Any, values: Tensor) -> None:
        """Start copying a flat tensor of numbers to the host, with a tag to read it back by."""
        event = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            values = host
        self._queue.append((tag, values, event))

    def pop(self, drain: bool = False) -> tuple[Any, list[float]] | None:
        """The measurement pushed ``lag`` pushes ago, or None before there is one.

        With ``drain`` the oldest measurement, however recent.
        """
        if len(self._queue) <= (0 if drain else self.lag):
            return None
        tag, values, event = self._queue.popleft()
        if event is not None:
            event.synchronize()
        return tag, values.tolist()

    def state_dict(self) -> list[tuple[Any, list[float]]]:
        """The measurements still under way, read now."""
        for _, _, event in self._queue:
            if event is not None:
                event.synchronize()
        return [(tag, values.tolist()) for tag, values, _ in self._queue]

    def load_state_dict(self, state: Sequence[tuple[Any, list[float]]]) -> None:
        """Continue with the measurements of :meth:`state_dict`."""
        self._queue = deque((tag, torch.tensor(values), None) for tag, values in state)
