"""What runs at untuned learning rates gain, as Markdown tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import product
from operator import attrgetter

import numpy as np

from benchmarks.arms import ARMS
from benchmarks.plan import Row, number
from benchmarks.rates.gains import (
    BOTH,
    COMPARED,
    Point,
    mean,
    mean_value,
    points,
    untuned_ratios,
    worst,
)
from benchmarks.rates.plan import (
    DEVELOPMENT,
    RATES,
    SHARES,
    SHORT,
    STEADY,
    best_rates,
    nearest,
)
from benchmarks.tasks import TASKS
from benchmarks.views import NONE, view
from hybrid_predict.ledger import LEAST_FACTOR
from hybrid_predict.runs.evidence import AT_LEAST, AT_MOST

TOLD = 1 / 10


def headline(rows: Collection[Row]) -> str:
    """Tell what a run at a tenth of the best rate is worth, and the best peer without a rate."""
    arms = {arm: [p for p in points(rows) if (p.share, p.arm) == (TOLD, arm)] for arm in COMPARED}
    worth = {arm: mean(p.beside_tuned for p in mine) for arm, mine in arms.items()}
    peers = {
        ARMS[arm].title: tasks.values()
        for (arm, _), tasks in untuned_ratios(rows).items() if arm not in COMPARED
    }  # fmt: skip
    peer = max(peers, key=lambda name: mean_value(peers[name]))
    return (
        f'**At a tenth of the best learning rate, a full step with `speedup="auto"` is worth '
        f"{worth['auto']} full steps of plain training at its best rate**, and "
        f"{mean(p.gain for p in arms['auto'])} of plain training at the same rate (geometric means "
        f"over {len(arms['auto'])} tasks). Corrected updates alone are worth {worth['corrected']}, "
        f"plain training at a tenth of its rate {worth['plain']}, and the best of "
        f"{len(peers)} optimizers that need no learning rate, {peer}, {mean(peers[peer])}."
    )


def share_text(share: float) -> str:
    """Return a share of the best rate in words."""
    return f"1/{1 / share:.0f}" if share < 1 else f"{share:.0f}"


def overall(rows: Iterable[Row], setting: str = RATES) -> str:
    """Return geometric means over tasks, by learning rate."""
    everything = points(rows, setting=setting)
    groups = [
        (share, arm, [p for p in everything if (p.share, p.arm) == (share, arm)])
        for share, arm in product(SHARES, COMPARED)
    ]
    return view(
        {
            "rate / best rate": share_text(share),
            "arm": arm,
            "tasks": f"{len(mine)}",
            "gain": mean(p.gain for p in mine),
            "worst task": NONE if arm == "plain" else worst({p.task: p.gain for p in mine}),
            "beside corrected": mean(p.beside_corrected for p in mine) if arm == "auto" else NONE,
            "beside plain at its best rate": mean(p.beside_tuned for p in mine),
            "predicted steps per full step": f"{_mean(mine, Point.predicted_per_full):.2f}",
        }
        for share, arm, mine in groups
        if mine
    )


def untuned(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks of arms whose rates know nothing of the task."""
    found = untuned_ratios(rows)
    return view(
        {
            "arm": ARMS[arm].title,
            "learning rate": f"{rate:g}",
            "tasks": f"{len(tasks)}",
            "beside plain at its best rate": mean(tasks.values()),
            "worst task": worst(tasks),
        }
        for (arm, rate), tasks in sorted(found.items(), key=lambda g: -mean_value(g[1].values()))
    )


def each(rows: Iterable[Row]) -> str:
    """Return every task at every rate with ``auto``."""
    return view(
        {
            "task": f"`{p.task}`",
            "rate / best rate": share_text(p.share),
            "full steps": f"{p.full_steps:.0f}",
            "predicted steps": f"{p.predicted_steps:.0f}",
            "loss": f"{p.loss:.4f}",
            "gain": mean([p.gain]),
            "beside corrected": mean([p.beside_corrected]),
            "beside plain at its best rate": mean([p.beside_tuned]),
        }
        for p in points(rows)
        if p.arm == "auto"
    )


def short(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks of runs of T / 4 steps, by learning rate."""
    everything = [p for p in points(rows, SHORT) if p.arm == "auto"]
    groups = [(share, [p for p in everything if p.share == share]) for share in SHARES]
    return view(
        {
            "rate / best rate": share_text(share),
            "tasks": f"{len(mine)}",
            "full steps": f"{_mean(mine, attrgetter('full_steps')):.0f}",
            "predicted steps": f"{_mean(mine, attrgetter('predicted_steps')):.0f}",
            "beside corrected": mean(p.beside_corrected for p in mine),
            "worst task": worst({p.task: p.beside_corrected for p in mine}),
        }
        for share, mine in groups
        if mine
    )


def _mean(points: Iterable[Point], value: Callable[[Point], float]) -> float:
    return statistics.fmean(map(value, points))


def factor(row: Row) -> float:
    """Return the factor on the learning rate that a run with ``auto`` has measured."""
    return float(1.0 + row["advance"])


def hints(rows: Iterable[Row]) -> str:
    """Return how often runs hinted, and how often plain training of T steps gained by following.

    Losses of plain training are means over seeds. They are interpolated between the rates of the
    study, linearly over the logarithm of the rate; nothing is extrapolated. Runs at constant rates
    are left out.
    """
    best = best_rates()
    lines = []
    kept = [row for row in rows if row["decay"]]
    plain = _plain(kept)
    for share in SHARES:
        runs = [
            row for row in kept
            if (row["arm"], row["setting"]) == ("auto", RATES)
            and row["steps"] == TASKS[row["task"]].steps
            and nearest(row["rate"] / best[row["task"]]) == share
        ]  # fmt: skip
        said = [row for row in runs if factor(row) >= LEAST_FACTOR]
        pairs = [_losses(plain.get(row["task"], {}), row) for row in said]
        known = [(here, there) for here, there in pairs if math.isfinite(here + there)]
        better = f"{sum(there < here for here, there in known)} of {len(known)}"
        factors = [factor(row) for row in said]
        ends = dict.fromkeys(f"{end(factors):.1f}" for end in (min, max)) if said else [NONE]
        lines.append(
            {
                "rate / best rate": share_text(share),
                "runs": f"{len(runs)}",
                "hinted": f"{len(said)}",
                "at factors of": " to ".join(ends),
                "plain training gained by it": better,
            }
        )
    return view(line for line in lines if line["runs"] != "0")


def _plain(rows: Iterable[Row]) -> dict[str, dict[float, float]]:
    """Mean losses of plain training of T steps, by task and rate."""
    losses: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row["arm"] == "plain" and row["full_steps"] == TASKS[row["task"]].steps:
            losses.setdefault(row["task"], {}).setdefault(row["rate"], []).append(
                number(row["loss"])
            )
    return {
        task: {rate: statistics.fmean(each) for rate, each in sorted(rates.items())}
        for task, rates in losses.items()
    }


def _losses(plain: Mapping[float, float], row: Row) -> tuple[float, float]:
    """Plain losses at a run's rate, and at the rate that it hinted at; nan if not known."""
    rates = [math.log(rate) for rate in plain]
    here, there = math.log(row["rate"]), math.log(row["rate"] * factor(row))
    if not rates or here < rates[0] or there > rates[-1]:
        return math.nan, math.nan
    losses = list(plain.values())
    return float(np.interp(here, rates, losses)), float(np.interp(there, rates, losses))


def source(rows: Collection[Row]) -> str:
    """Return how many runs the tables come from."""
    seeds = {row["seed"] for row in rows}
    return (
        f"{len(rows)} runs, {len(seeds)} seed{'s' * (len(seeds) != 1)}; {AT_LEAST} and {AT_MOST} "
        "mark losses outside of the range of the runs "
        f"compared with, {BOTH} means over bounds of both kinds."
    )


def blocks(rows: Collection[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the pages, by name."""
    kept, fresh = ([row for row in rows if (row["task"] in DEVELOPMENT) == known]
                   for known in (True, False))  # fmt: skip
    return {
        "rates source": partial(source, kept),
        "rates headline": partial(headline, kept),
        "rates overall": partial(overall, kept),
        "rates constant": partial(overall, kept, STEADY),
        "rates untuned": partial(untuned, kept),
        "rates each": partial(each, kept),
        "rates short": partial(short, kept),
        "rates hints": partial(hints, kept),
        "rates fresh": partial(overall, fresh),
        "rates fresh each": partial(each, fresh),
    }
