"""What was measured on a GPU as Markdown; what was not measured is told in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.arms import ARMS, PLAIN
from benchmarks.gpu.record import TARGET
from benchmarks.plan import number
from benchmarks.ranks import table as ranks
from benchmarks.step_cost import ADDED, WAYS
from benchmarks.table import NONE, markdown, speedup_text
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import Speedup, speedup

Found = Mapping[str, Any]


def path(name: str, folder: Path = RESULTS) -> Path:
    """The results file of a command."""
    return folder / f"gpu-{name}.json"


def blocks(folder: Path = RESULTS) -> dict[str, Callable[[], str]]:
    """What makes the blocks of the page, by name; they raise ConfigError for results of toys."""
    return {f"gpu {name}": partial(_block, name, make, folder) for name, make in TABLES.items()}


def _block(name: str, make: Callable[[Found], str], folder: Path) -> str:
    file = path(name, folder)
    if not file.exists():
        return f"Not measured yet. `python -m benchmarks.gpu {name}` measures it."
    results: Found = json.loads(file.read_text("utf-8"))
    measured: Sequence[Found] = results.get("rows", [results])
    if any(part["toy"] for part in measured):
        remedy = f"Delete them, and run python -m benchmarks.gpu {name} without --toy."
        raise ConfigError(str(file), "results at full size", "results of --toy", remedy)
    return f"{make(results)}\n\n{'; '.join(dict.fromkeys(map(_machine, measured)))}."


def _machine(part: Found) -> str:
    env = part["environment"]
    return f"{env['gpu'] or env['cpu']}, torch {env['torch']}"


def step_time(results: Found) -> str:
    """A full step with and without the plug-in."""
    rows = [["plain", f"{results['plain_ms']:.1f}", "1"]]
    for way in ADDED:
        low, high = results[way]["quartiles"]
        ratio = results[way]["ratio"]
        rows.append(
            [way, f"{ratio * results['plain_ms']:.1f}", f"{ratio:.3f} ({low:.3f} to {high:.3f})"]
        )
    return markdown(["way", "full step, ms", "of a plain one (quartiles)"], rows)


def memory(results: Found) -> str:
    """Peak of the allocator."""
    rows = [[way, f"{results[way] / 2**20:,.0f}", f"{results[way] / results['plain']:.3f}"]
            for way in WAYS]  # fmt: skip
    return markdown(["way", "memory, MiB", "of plain training's"], rows)


def sync(results: Found) -> str:
    """Waits of the host."""
    rows = [[way, results[way] or "none"] for way in WAYS]
    return markdown(["way", "first wait of the host in steady state"], rows)


def quality(results: Found) -> str:
    """One run of every arm."""
    known = speedups(results["rows"])
    rows = [
        [ARMS[row["arm"]].title, f"{row['full_steps']:,}", f"{row['predicted_steps']:,}",
         f"{row['seconds']:.0f}", _loss(row),
         speedup_text(known[row["arm"]]) if row["arm"] in known else NONE]
        for row in results["rows"]
    ]  # fmt: skip
    titles = ["arm", "full steps", "predicted steps", "seconds", "final loss",
              "speedup at equal quality"]  # fmt: skip
    return markdown(titles, rows) + "\n\nOne seed: every difference is a hint."


def speedups(rows: Sequence[Found]) -> dict[str, Speedup]:
    """Return the speedup of every arm but the plain ones, of one run each."""
    plain = [row for name in PLAIN for row in rows if row["arm"] == name]
    budgets = [row["full_steps"] for row in plain]
    losses = [[number(row["loss"])] for row in plain]
    return {
        row["arm"]: speedup(budgets, losses, [number(row["loss"])], [row["full_steps"]])
        for row in rows
        if row["arm"] not in PLAIN
    }


def record(results: Found) -> str:
    """Runs in the public record's set-up."""
    rows = [
        [f"`{row['arm']}`", f"{row['steps']:,}", str(row["seed"]), f"{row['full_steps']:,}",
         f"{row['predicted_steps']:,}", f"{row['seconds']:.0f}", _loss(row),
         "yes" if row["reached"] else "no", str(row["rows"]), "yes" if row["compiled"] else "no",
         _machine(row)]
        for row in results["rows"]
    ]  # fmt: skip
    titles = ["arm", "steps", "seed", "full steps", "predicted steps", "seconds",
              "validation loss at the end", f"reached {TARGET:g}", "windows together", "compiled",
              "machine"]  # fmt: skip
    return markdown(titles, rows)


def _loss(row: Found) -> str:
    return "diverged" if row["loss"] is None else f"{row['loss']:.4f}"


TABLES: dict[str, Callable[[Found], str]] = {
    "step-time": step_time,
    "memory": memory,
    "sync": sync,
    "quality": quality,
    "ranks": ranks.measured,
    "record": record,
}


def done(file: Path) -> Sequence[Found]:
    """The rows of a results file; none if there is no file."""
    if not file.exists():
        return []
    rows: list[Found] = json.loads(file.read_text("utf-8"))["rows"]
    return rows
