"""What is kept of a group of tensors between full steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from hybrid_predict.accounts.saved import check_count, check_numbers, damaged
from hybrid_predict.forecast.plan import Plan
from hybrid_predict.forecast.predictors.base import PredictorState
from hybrid_predict.forecast.projection import Examination
from hybrid_predict.forecast.window import Window
from hybrid_predict.tensors import TorchBackend, is_half, ranks, shards
from hybrid_predict.updates.base import UpdateState


@final
@dataclass
class GroupMemory:
    """The arrays of a group.

    Args:
        average: Averaged gradients.
        carry: Rounding errors of weights in 16 bits; empty if there are none.
        update: State of the corrected update, or None.
        history: State of the predictor, or None.
        window: The open window of displacements, or None.
        examination: Whether the optimizer projects its updates.
    """

    average: list[Tensor]
    carry: list[Tensor]
    update: UpdateState | None
    history: PredictorState | None
    window: Window | None
    examination: Examination = field(default_factory=Examination)

    @classmethod
    def allocate(
        cls,
        plan: Plan,
        names: Sequence[str],
        values: list[Tensor],
        backend: TorchBackend,
        length: int,
    ) -> GroupMemory:
        """Return the memory of a group that has seen no full step.

        Args:
            plan: How the tensors are treated.
            names: Names of the K parameters.
            values: Their local shards.
            backend: Kernels for them.
            length: Number of displacements in a window.
        """
        update, predictor = plan.update, plan.predictor
        return cls(
            average=backend.zeros(values),
            carry=backend.zeros(values, "float32") if any(map(is_half, values)) else [],
            update=update.init(values, backend) if update else None,
            history=predictor.init(names, values, backend) if predictor else None,
            window=Window(length, values) if predictor else None,
        )

    def arrays(self) -> dict[str, list[Tensor]]:
        """Return all lists of arrays by name, as in a saved state."""
        lists = {"average": self.average, "carry": self.carry}
        if self.update is not None:
            lists.update({f"update.{n}": a for n, a in self.update.arrays.items()})
        if self.history is not None:
            lists.update({f"history.{n}": a for n, a in self.history.arrays.items()})
        return lists

    @property
    def held_bytes(self) -> int:
        """Memory in bytes."""
        kept = sum(x.nbytes for arrays in self.arrays().values() for x in arrays)
        return kept + (self.window.held_bytes if self.window is not None else 0)

    def inherit(self, other: GroupMemory, names: Sequence[str], others: Sequence[str]) -> None:
        """Copy what is known of tensors that another group with the same plan has.

        Args:
            other: Memory of the other group.
            names: Names of this group's parameters.
            others: Names of the other group's parameters.
        """
        places = {name: k for k, name in enumerate(others)}
        pairs = [(k, places[name]) for k, name in enumerate(names) if name in places]
        known = other.arrays()
        for name, arrays in self.arrays().items():
            for k, source in pairs if known[name] else ():
                if arrays and arrays[k].shape == known[name][source].shape:
                    arrays[k].copy_(known[name][source])
        examined = other.examination.found.items()
        self.examination.found.update({n: found for n, found in examined if n in names})
        if self.update is not None and other.update is not None:
            self.update.numbers = dict(other.update.numbers)
        if self.history is not None and other.history is not None:
            self.history.count = other.history.count
            numbers = other.history.numbers
            shared = {n: list(numbers[n]) for n in names if n in numbers}
            self.history.numbers.update(shared)

    def state_dict(self) -> dict[str, Any]:
        """Return counts, numbers and arrays; the window is saved apart."""
        fitted = dict(self.history.numbers) if self.history else {}
        return {
            "count": self.history.count if self.history else 0,
            "numbers": dict(self.update.numbers) if self.update else {},
            "fitted": {name: list(numbers) for name, numbers in fitted.items()},
            "examined": dict(self.examination.found),
            **self.arrays(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`, local shards.

        Raises:
            CheckpointError: If an array is missing or has another shape, or a number cannot be.
        """
        for name, arrays in self.arrays().items():
            found = state.get(name)
            shapes = [tuple(a.shape) for a in arrays]
            if not isinstance(found, list) or [tuple(a.shape) for a in found] != shapes:
                raise damaged(f"{name} of shapes {shapes[:3]}...", "other shapes")
            for target, source in zip(arrays, found, strict=True):
                target.copy_(source)
        examined = state["examined"].items()
        self.examination.found = {name: bool(found) for name, found in examined}
        if self.update is not None:
            for name, number in self.update.numbers.items():
                found = state["numbers"][name]
                if found.shape != number.shape or found.isnan().any():
                    raise damaged(f"{name} to be a number", found)
                self.update.numbers[name] = found.to(number)
        if self.history is not None:
            fitted = state["fitted"].items()
            self.history.count = check_count("count", state["count"])
            self.history.numbers = {name: check_numbers("fitted", x) for name, x in fitted}


def load_window(
    window: Window, windows: Sequence[dict[str, Any]], parameters: Sequence[Tensor]
) -> None:
    """Load this rank's saved window, or an empty one if tensors are sharded differently now.

    Args:
        window: The window to load it into.
        windows: The saved windows of all ranks.
        parameters: The parameters of the group.
    """
    count = len(windows)
    found = windows[ranks.rank() if count == ranks.size() else 0]
    split = count > 1 or any(map(shards.is_sharded, parameters))
    if split and not window.fits(found):
        found = Window(window.length, list(map(shards.local, parameters))).state_dict()
    window.load_state_dict(found)
