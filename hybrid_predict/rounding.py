"""Forecasts in half precision: what rounding leaves out of one is carried over to the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybrid_predict.backends import TorchBackend, is_half


class RoundingCarry:
    r"""Moves parameters by forecasts so that no part of a forecast is lost to rounding for good.

    A forecast step is often shorter than half the spacing of 16-bit floats and would be rounded
    away every time. With base weights :math:`\theta`, carry c and the rounding R of the parameter,

    .. math::
        \theta' = R(\theta + c + \hat\Delta), \qquad c \leftarrow \theta + c + \hat\Delta - \theta'

    so the parameters moved by the sum of all forecasts, to within one rounding. Forecasts that are
    undone leave the carry as it was. Memory: one 32-bit buffer per forecast half-precision
    parameter, two from a forecast to the end of its full step; none for other parameters.

    References:
        Compensated summation: Kahan (1965), https://doi.org/10.1145/363707.363723
    """

    def __init__(self) -> None:
        self._backend = TorchBackend()
        self._carry: dict[str, Tensor] = {}
        self._pending: dict[str, Tensor] = {}

    def add(
        self,
        names: Sequence[str],
        values: Sequence[Tensor],
        directions: Sequence[Tensor],
        factors: Sequence[float],
    ) -> None:
        """Move ``values[k]``, in place, by ``factors[k] * directions[k]`` and what is carried."""
        half = [k for k, value in enumerate(values) if is_half(value)]
        rest = [k for k, value in enumerate(values) if not is_half(value)]
        self._backend.add_scaled(
            [values[k] for k in rest], [directions[k] for k in rest], [factors[k] for k in rest]
        )
        for k in half:
            wanted = values[k].float().add_(directions[k], alpha=factors[k])
            if names[k] in self._carry:
                wanted.add_(self._carry[names[k]].to(wanted.device))
            values[k].copy_(wanted)
            self._pending[names[k]] = wanted.sub_(values[k])

    def commit(self) -> None:
        """Keep the carry of the forecasts since the last call: they can no longer be undone."""
        self._carry.update(self._pending)
        self._pending = {}

    def drop(self) -> None:
        """Take back the carry of the forecasts since the last :meth:`commit`."""
        self._pending = {}

    def restore(self, good: Tensor | bool, name: str) -> None:
        """Take back one parameter's where ``good`` is false; a tensor is never read."""
        if isinstance(good, Tensor):
            if name in self._pending:
                new = self._pending[name]
                old = self._carry.get(name, torch.zeros_like(new))
                self._pending[name] = torch.where(good, new, old)
        elif not good:
            self._pending.pop(name, None)

    def state_dict(self) -> dict[str, Tensor]:
        """What was carried at the last :meth:`commit`, by parameter name; the caller copies it."""
        return dict(self._carry)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a saved carry."""
        self._carry, self._pending = dict(state), {}
