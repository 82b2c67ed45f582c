"""The memory of a group of tensors between full steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import Tensor

from hybrid_predict.forecast.base import AbstractPredictor, PredictorState
from hybrid_predict.forecast.window import Window
from hybrid_predict.rules.skill import window_length
from hybrid_predict.saved import check_count, check_numbers, damaged
from hybrid_predict.torch import lists, ranks, shards
from hybrid_predict.updates.base import AbstractUpdate, UpdateState
from hybrid_predict.updates.projection import Examination


@final
class Treatment(NamedTuple):
    """How a group of tensors is treated.

    Args:
        kind: Kind of the parameters.
        owner: Number of their optimizer.
        update: Corrected update, or None.
        predictor: Predictor, or None.
        paced: Whether the run decides how far predicted steps move the tensors.
    """

    kind: str
    owner: int
    update: AbstractUpdate | None
    predictor: AbstractPredictor | None
    paced: bool = False

    def key(self) -> list[Any]:
        """Return the values in which a saved group and the group that loads it must agree."""
        return [self.kind, self.owner, repr(self.update), repr(self.predictor)]


@final
@dataclass
class Memory:
    """The arrays of a group.

    Args:
        average: Averaged gradients.
        carries: Rounding errors of weights in 16 bits; empty if there are none.
        update: State of the corrected update, or None.
        history: State of the predictor, or None.
        window: The open window of displacements, or None.
        examination: Whether the optimizer projects its updates.
    """

    average: list[Tensor]
    carries: list[Tensor]
    update: UpdateState | None
    history: PredictorState | None
    window: Window | None
    examination: Examination = field(default_factory=Examination)

    def arrays(self) -> dict[str, list[Tensor]]:
        """Return all lists of tensors by name, as in a saved state."""
        arrays = {"average": self.average, "carry": self.carries}
        if self.update is not None:
            arrays.update({f"update.{n}": a for n, a in self.update.arrays.items()})
        if self.history is not None:
            arrays.update({f"history.{n}": a for n, a in self.history.arrays.items()})
        return arrays

    def held_bytes(self, *, fitted: bool) -> int:
        """Return the memory in bytes, while a window is open; ``fitted`` as for `Window`."""
        kept = sum(x.nbytes for arrays in self.arrays().values() for x in arrays)
        return kept + (self.window.held_bytes(fitted=fitted) if self.window is not None else 0)

    def inherit(self, other: Memory, names: Sequence[str], others: Sequence[str]) -> None:
        """Copy the state of tensors that another group with the same treatment has."""
        places = {name: k for k, name in enumerate(others)}
        pairs = [(k, places[name]) for k, name in enumerate(names) if name in places]
        known = other.arrays()
        for name, arrays in self.arrays().items():
            for k, source in pairs if known[name] else ():
                if arrays and arrays[k].shape == known[name][source].shape:
                    arrays[k].copy_(known[name][source])
        projected = other.examination.projected.items()
        self.examination.projected.update({n: seen for n, seen in projected if n in names})
        if len(pairs) == len(names):  # else there are tensors to examine
            self.examination.attempts = other.examination.attempts
        if self.update is not None and other.update is not None:
            self.update.numbers = dict(other.update.numbers)
        if self.history is not None and other.history is not None:
            self.history.count = other.history.count
            numbers = other.history.numbers
            self.history.numbers.update({n: [*numbers[n]] for n in names if n in numbers})
        if self.window is not None and other.window is not None:
            self.window.inherit(other.window, pairs)

    def save(self, tensors: Sequence[Tensor], *, whole: bool) -> dict[str, Any] | None:
        """Return counts, numbers and arrays.

        Args:
            tensors: The parameters.
            whole: If they are sharded, whether to gather full tensors on the host of rank 0. Every
                rank has to call it then, and all other ranks get None. Otherwise each rank gets its
                local shards.
        """
        fitted = self.history.numbers if self.history else {}
        state = {
            "count": self.history.count if self.history else 0,
            "numbers": dict(self.update.numbers) if self.update else {},
            "fitted": {name: list(numbers) for name, numbers in fitted.items()},
            "examined": [dict(self.examination.projected), self.examination.attempts],
            **self.arrays(),
        }
        # The samples of local shards differ between ranks.
        sharded = whole and any(map(shards.is_sharded, tensors))
        window = self.window.state_dict() if self.window is not None else None
        windows = ranks.gather(window) if sharded else [window]
        collected = shards.gather_state(state, tensors) if whole else state
        return None if collected is None else {**collected, "windows": windows}

    def load(self, saved: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Load a state of :meth:`save`, gathered or local.

        Raises:
            CheckpointError: If an array is missing or has another shape, or a number cannot be.
        """
        state = shards.shard_state(saved, tensors)
        for name, arrays in self.arrays().items():
            _load_arrays(name, arrays, state.get(name))
        projected, attempts = state["examined"]
        self.examination.projected = {str(name): bool(seen) for name, seen in projected.items()}
        self.examination.attempts = check_count("attempts", attempts)
        if self.update is not None:
            for name, number in self.update.numbers.items():
                loaded = state["numbers"][name]
                if loaded.shape != number.shape or loaded.isnan().any():
                    raise damaged(f"{name} to be a number", loaded)
                self.update.numbers[name] = loaded.to(number)
        if self.history is not None:
            self.history.count = check_count("count", state["count"])
            fitted = state["fitted"].items()
            self.history.numbers = {name: check_numbers("fitted", x) for name, x in fitted}
        if self.window is not None:
            self.window.load_of(saved["windows"], tensors)


def allocate(
    treatment: Treatment,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    history: str,
    momentum: float,
) -> Memory:
    """Return the memory of a group that has seen no full step."""
    values = [shards.local(p) for p in tensors]
    update, predictor, length = treatment.update, treatment.predictor, window_length(momentum)
    return Memory(
        average=lists.zeros(values, history),
        carries=lists.zeros(values) if any(map(lists.is_half, values)) else [],
        update=update.init([p.detach() for p in tensors], history) if update else None,
        history=predictor.init(names, values, history) if predictor else None,
        window=Window(length, values, paced=treatment.paced) if predictor else None,
    )


def _load_arrays(name: str, arrays: Sequence[Tensor], loaded: Any) -> None:
    shapes = [tuple(a.shape) for a in arrays]
    if not isinstance(loaded, list) or [tuple(a.shape) for a in loaded] != shapes:
        raise damaged(f"{name} of shapes {shapes[:3]}...", "other shapes")
    for target, source in zip(arrays, loaded, strict=True):
        target.copy_(source)
