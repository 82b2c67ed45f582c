"""When the protocols of forecasts reach the loss of plain training, as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Collection

from benchmarks.plan import Row
from benchmarks.table import NONE, markdown
from benchmarks.yardsticks.small import ARMS, PROTOCOLS, SETTLED, STEPS, key_of


def first_hit(row: Row, target: float) -> int | None:
    """Return the full steps at the first evaluation that is at most a loss."""
    pairs = zip(row["steps"], row["losses"], strict=True)
    return next((steps for steps, loss in pairs if loss <= target), None)


def target(row: Row) -> float:
    """Return the mean of the last evaluations of a plain run."""
    return statistics.fmean(row["losses"][-SETTLED:])


def table(rows: Collection[Row]) -> str:
    """Return by protocol and arm when the final loss of plain training is reached."""
    lines = []
    for name, protocol in PROTOCOLS.items():
        for arm in ARMS:
            mine = {row["seed"]: row for row in rows if key_of(row)[:2] == (name, arm)}
            plain = {r["seed"]: r for r in rows if key_of(r)[:2] == (name, "plain")}
            seeds = sorted(mine.keys() & plain.keys())
            if not seeds:
                continue
            hits = [first_hit(mine[seed], target(plain[seed])) for seed in seeds]
            known = [hit for hit in hits if hit is not None]
            saved = (
                f"{1 - statistics.fmean(known) / STEPS:.0%}" if len(known) == len(hits) else NONE
            )
            lines.append([
                protocol.source if arm == "plain" else "", arm,
                f"{len(known)} of {len(hits)}",
                f"{statistics.fmean(known):,.0f}" if known else NONE, saved,
                f"{statistics.fmean(mine[seed]['predicted_steps'] for seed in seeds):,.0f}",
                f"{statistics.fmean(mine[seed]['losses'][-1] for seed in seeds):.4f}",
                protocol.saving if arm == "plain" else "",
            ])  # fmt: skip
    titles = [
        "protocol", "arm", "reached", "full steps until then", f"saved of {STEPS:,}",
        "predicted steps of the run", "loss at its end", "saving that its authors report",
    ]  # fmt: skip
    return markdown(titles, lines)
