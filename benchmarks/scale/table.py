"""Results of several widths and lengths as Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.arms import ARMS
from benchmarks.digests import states
from benchmarks.figures import of_runs
from benchmarks.plan import TUNING, TUNING_SEED, Row, number
from benchmarks.scale.plan import CASES, PLAIN
from benchmarks.speedups import Speedup
from benchmarks.views import speedup_text, view

Runs = dict[int, Row]
"""Rows of one width, arm and T, by seed."""


@dataclass(frozen=True)
class Point:
    """The runs of one arm at one width and length T, one per seed.

    ``speedup`` is None for plain runs, and where the plain runs of T / 1.5, T and 2 T are not done.
    """

    width: int
    steps: int
    arm: str
    rows: Sequence[Row]
    speedup: Speedup | None

    def mean(self, field: str) -> float:
        """Return the mean of a field; that of losses is not finite if a run diverged."""
        return statistics.fmean(number(row[field]) for row in self.rows)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return int(self.rows[0]["parameters"])

    @property
    def tokens(self) -> float:
        """Bytes that its full steps read, per parameter."""
        return self.mean("full_steps") * self.rows[0]["tokens"] / self.parameters


def points(rows: Iterable[Row]) -> list[Point]:
    """Every arm at every width and length, ascending; trials of rates left out."""
    runs: dict[tuple[int, int, str], Runs] = {}
    for row in rows:
        if row["setting"] != TUNING:
            key = row["width"], row["steps"], row["arm"]
            runs.setdefault(key, {})[row["seed"]] = row
    order = [PLAIN, *(name for name in ARMS if name != PLAIN)]
    return [
        Point(*key, list(runs[key].values()), None if key[2] == PLAIN else _speedup(runs, *key))
        for key in sorted(runs, key=lambda key: (key[0], key[1], order.index(key[2])))
    ]


def _speedup(
    runs: Mapping[tuple[int, int, str], Runs], width: int, steps: int, arm: str
) -> Speedup | None:
    """Read off all plain runs of the width that have the arm's seeds."""
    plain = {t: by_seed for (w, t, name), by_seed in sorted(runs.items())
             if (w, name) == (width, PLAIN)}  # fmt: skip
    budget = ARMS[arm].full_steps(steps)
    needed = [plain.get(length, {}) for length in (budget, steps, 2 * steps)]
    group = runs[width, steps, arm]
    seeds = sorted(set(group).intersection(*needed))
    if not seeds:
        return None
    curve = {t: by_seed for t, by_seed in plain.items() if by_seed.keys() >= set(seeds)}
    known = [[number(by_seed[seed]["loss"]) for seed in seeds] for by_seed in curve.values()]
    return of_runs(list(curve), known, [group[seed] for seed in seeds])


def blocks(rows: Iterable[Row]) -> dict[str, Callable[[], str]]:
    """What makes the blocks of the page, by name."""
    kept = list(rows)
    return {
        "scale source": partial(source, kept),
        "scale plain": partial(plain_table, kept),
        "scale speedups": partial(speedups_table, kept),
    }


def source(rows: list[Row]) -> str:
    """How many runs there are, and which cases are not done."""
    compared = {(p.width, p.steps, p.arm) for p in points(rows) if p.speedup is not None}
    cases = {(case.width, case.steps): case.arms for case in CASES}
    missing = [
        f"width {width} at T = {steps:,}"
        + (f" ({', '.join(left)})" if len(left) < len(arms) else "")
        for (width, steps), arms in cases.items()
        if (left := [arm for arm in arms if (width, steps, arm) not in compared])
    ]
    trials = sum(row["setting"] == TUNING for row in rows)
    codes = states(rows)
    mixed = f" Runs with the plug-in come from {codes} states of the code." if codes > 1 else ""
    still = f" Not done yet: {'; '.join(missing)}." if missing else ""
    return (
        f"{len(rows) - trials} runs, and {trials} trials of rates with seed {TUNING_SEED}, one "
        f"thread each. So few seeds make every difference a hint.{mixed}{still}"
    )


def plain_table(rows: list[Row]) -> str:
    """The plain runs, a row per width and length."""
    return view(
        {
            "width": str(p.width),
            "parameters": f"{p.parameters:,}",
            "full steps": f"{p.mean('full_steps'):,.0f}",
            "bytes per parameter": f"{p.tokens:.2g}",
            "rate": _rate(p),
            "final loss, mean": _loss(p),
            "seeds": str(len(p.rows)),
        }
        for p in points(rows)
        if p.arm == PLAIN
    )


def speedups_table(rows: list[Row]) -> str:
    """The arms beside plain training, a row per width, length and arm."""
    return view(
        {
            "width": str(p.width),
            "T": f"{p.steps:,}",
            "arm": ARMS[p.arm].title,
            "full steps": f"{p.mean('full_steps'):,.0f}",
            "predicted steps": f"{p.mean('predicted_steps'):,.0f}",
            "bytes per parameter": f"{p.tokens:.2g}",
            "rate (x hidden)": _rate(p),
            "final loss, mean": _loss(p),
            "speedup at equal quality": speedup_text(p.speedup),
            "seeds": str(len(p.rows)),
        }
        for p in points(rows)
        if p.arm != PLAIN
    )


def _rate(point: Point) -> str:
    rate, hidden = point.rows[0]["rate"], point.rows[0]["hidden"]
    return f"{rate:g}" + (f" x {hidden:g}" if hidden != 1 else "")


def _loss(point: Point) -> str:
    loss = point.mean("loss")
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"
