"""The history of a run in bounded memory, for figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybrid_predict.saved import check_count, damaged, reading
from hybrid_predict.record import StepRecord
from hybrid_predict.rules.verdict import Verdict

COLUMNS = ("full_step", "step", "loss", "predicted", "undone")


@dataclass
class RunHistory:
    """Rows of a run, each for ``stride`` full steps; at most ``capacity`` of them.

    Args:
        capacity: Most rows to keep, at least 2. If there are more, two rows at a time are merged
            into one, and ``stride`` doubles.
        stride: Full steps in a row.
        rows: For each row its last full step, its last step and the training loss there, then the
            number of predicted steps in it that stand and that were undone.
    """

    capacity: int = 2000
    stride: int = 1
    rows: list[list[Any]] = field(default_factory=list)
    _made: dict[int, int] = field(default_factory=dict, repr=False)

    def add(self, record: StepRecord, steps: int) -> None:
        """Add the measurements of a record, if it has any.

        Args:
            record: Record of a full step; it measures full step ``read_step``.
            steps: Steps done, the record's own ticks included.
        """
        if record.predicted:
            self._made[record.step] = record.predicted
        read = record.read_step
        if read is None:
            return
        made = sum(self._made.pop(k) for k in sorted(self._made) if k <= read)
        counts = [0, made] if record.verdict is Verdict.UNDONE else [made, 0]
        self._append([read, steps - (record.step - read), record.loss, *counts])
        if len(self.rows) > self.capacity:
            self.stride *= 2
            rows, self.rows = self.rows, []
            for row in rows:
                self._append(row)

    def column(self, name: str) -> list[Any]:
        """Return one column; ``name`` is one of :data:`COLUMNS`."""
        k = COLUMNS.index(name)
        return [row[k] for row in self.rows]

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as primitives."""
        made = [list(pair) for pair in self._made.items()]
        return {"stride": self.stride, "rows": [list(row) for row in self.rows], "made": made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of :meth:`state_dict`.

        Raises:
            CheckpointError: If an entry is missing or damaged.
        """
        with reading("history"):
            stride = check_count("stride", state["stride"], 1)
            rows = [list(row) for row in state["rows"]]
            for row in rows:
                for name, value in zip(COLUMNS, row, strict=True):
                    if name != "loss":
                        check_count(name, value)
                    elif not isinstance(value, (float, int, type(None))):
                        raise damaged("a loss", value)
            made = {check_count("step", k): check_count("predicted", n) for k, n in state["made"]}
        self.stride, self.rows, self._made = stride, rows, made

    def _append(self, row: list[Any]) -> None:
        """Append a row, or merge it into the last one if both belong to the same stride."""
        last = self.rows[-1] if self.rows else None
        if last is None or (last[0] - 1) // self.stride != (row[0] - 1) // self.stride:
            self.rows.append(row)
            return
        full_step, step, loss, predicted, undone = row
        loss = last[2] if loss is None else loss
        self.rows[-1] = [full_step, step, loss, last[3] + predicted, last[4] + undone]
