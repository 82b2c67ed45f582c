"""Run logs as a run writes them, as plain data."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.runs.log import NAME, SCHEMA

__all__ = ["NAME", "ROWS", "SKILLS", "row", "written"]

PLAN = {
    "steps": 200, "predicted": 60, "paced": False, "words": {},
}  # fmt: skip

SKILLS = {
    "hidden": {
        "mean": 0.31, "lower": 0.25, "length": 0.41, "windows": 3,
    }
}  # fmt: skip


def row(full_steps: int, predicted: int, skills: Any, **changes: Any) -> dict[str, Any]:
    """One row; ``changes`` are fields of its ledger."""
    ledger = {
        "full_steps": full_steps, "steps": full_steps + predicted, "predicted_steps": predicted,
        "undone_steps": 1, "corrected_steps": full_steps, "skill": 0.3 if skills else None,
        "predicted_length": 0.4 * predicted, "skills": skills, "full_seconds": 0.1 * full_steps,
        "correct_seconds": 0.5, "predict_seconds": 0.1, "flops_per_step": 100,
        "flops_per_correction": 8, **changes,
    }  # fmt: skip
    return {
        "type": "row", "run": "x", "time": 1000.0, "phase": "predict", "loss": 2.0 / full_steps,
        "ledger": SavingsLedger(**ledger).summary(),
    }  # fmt: skip


ROWS = [row(20, 0, {}), row(60, 0, SKILLS), row(140, 60, SKILLS)]


def written(
    rows: Any, end: str | None = "finished", event: str = "something <happened>"
) -> list[dict[str, Any]]:
    """The lines of a run, which has an event from its last row on."""
    start = {
        "type": "start", "run": "x", "time": 990.0, "schema": SCHEMA, "full_steps": 0,
        "config": {"speedup": 1.5}, "plan": PLAN,
        "environment": {"torch": "2.9", "gpu": None},
    }  # fmt: skip
    last = [{"type": "end", "run": "x", "time": 1010.0, "status": end}] if end else []
    lines: list[dict[str, Any]] = deepcopy([start, *rows, *last])
    if rows:
        lines[len(rows)]["ledger"]["events"] = [{"step": 70, "reason": event, "count": 1}]
    return lines
