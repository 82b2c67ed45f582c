"""The course of a run in bounded memory, for figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybrid_predict.window import StepRecord

COLUMNS = ("full_step", "equivalent_step", "loss", "horizon", "verdict")


@dataclass
class RunHistory:
    """Evenly thinned records of a run, at most ``capacity`` of them.

    Args:
        capacity: Rows kept, at least 2; when they run out, every other one is dropped and from
            then on only every other one is taken.
        stride: A row is taken every so many full steps.
        rows: One row per record taken: full step, equivalent step, loss, horizon, verdict.
    """

    capacity: int = 2000
    stride: int = 1
    rows: list[list[Any]] = field(default_factory=list)

    def add(self, record: StepRecord, equivalent_steps: int) -> None:
        """Take a record, if it is its turn; its statistics are those of an earlier full step."""
        step = record.step if record.read_step is None else record.read_step
        if step % self.stride:
            return
        equivalent = max(step, equivalent_steps - (record.step - step))
        verdict = record.verdict.value if record.verdict else ""
        self.rows.append([step, equivalent, record.loss, record.horizon, verdict])
        if len(self.rows) >= self.capacity:
            self.stride *= 2
            self.rows = [row for row in self.rows if row[0] % self.stride == 0]

    def column(self, name: str) -> list[Any]:
        """One column; ``name`` is one of :data:`COLUMNS`."""
        k = COLUMNS.index(name)
        return [row[k] for row in self.rows]

    def state_dict(self) -> dict[str, Any]:
        """The rows, as primitives."""
        return {"stride": self.stride, "rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved rows."""
        self.stride = int(state["stride"])
        self.rows = [list(row) for row in state["rows"]]
