"""Event logs as a run writes them, as plain data."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hybrid_predict.report.log_lines import SCHEMA
from hybrid_predict.report.run_log import NAME

__all__ = ["NAME", "PLAN", "ROWS", "SKILLS", "row", "written"]

PLAN = {
    "parts": [], "left_out": [], "steps": 200, "predicted": 60, "warmup": 50, "cooldown": 10,
    "held_bytes": 1000,
}  # fmt: skip

SKILLS = {
    "hidden": {
        "mean": 0.31, "lower": 0.25, "length": 0.41, "fitted": 0.44, "error": 0.87, "windows": 3,
    }
}  # fmt: skip


def row(full_steps: int, predicted: int, skills: Any, time: float = 1000.0) -> dict[str, Any]:
    """One row."""
    return {
        "type": "row", "time": time, "full_steps": full_steps, "steps": full_steps + predicted,
        "predicted_steps": predicted, "undone_steps": 1, "corrected_steps": full_steps,
        "phase": "predict", "loss": 2.0 / full_steps, "skill": 0.3 if skills else None,
        "predicted_length": 0.4 * predicted,
        "skills": skills, "seconds": [0.1 * full_steps, 0.5, 0.1], "flops": [100, 8],
    }  # fmt: skip


ROWS = [row(20, 0, {}), row(60, 0, SKILLS), row(140, 60, SKILLS)]


def written(rows: Any, end: str | None = "finished", **plan: Any) -> list[dict[str, Any]]:
    """The lines of a run."""
    start = {
        "type": "start", "time": 990.0, "schema": SCHEMA, "full_steps": 0,
        "config": {"speedup": 1.5},
        "plan": {**PLAN, **plan}, "environment": {"torch": "2.9", "gpu": None},
    }  # fmt: skip
    event = {"type": "event", "time": 999.0, "full_steps": 70, "reason": "something <happened>"}
    last = [{"type": "end", "time": 1010.0, "status": end, "ledger": {}}] if end else []
    return deepcopy([start, *rows, event, *last])
